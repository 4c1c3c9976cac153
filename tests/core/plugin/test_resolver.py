from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.errors import ComponentNotFoundError, ResolutionError
from slotwise.interfaces.attention import AttentionCapabilities, AttentionLayer
from slotwise.interfaces.model import ModelCapabilities, ModelDescription, WeightsCapabilities
from slotwise.interfaces.sampler import SamplerCapabilities
from slotwise.plugin.component import Component
from slotwise.plugin.discovery import EntryPointInfo
from slotwise.plugin.machine import MachineDescription
from slotwise.plugin.resolver import Resolution, resolve_attention, resolve_slot
from slotwise.plugin.states import PluginState, PluginStatus

CPU = MachineDescription(device_type="cpu", device_name="some CPU")
HOPPER = MachineDescription(device_type="cuda", device_name="H", compute_capability=(9, 0))
TURING = MachineDescription(device_type="cuda", device_name="T", compute_capability=(7, 5))
LAYER = AttentionLayer(name="l0", index=0, num_heads=4, num_kv_heads=2, head_dim=64, scale=0.125)
WINDOW = replace(LAYER, name="l1", index=1, kind="sliding_window", sliding_window=8)
MLA = replace(LAYER, num_kv_heads=1, head_dim=80, latent_value_dim=64)
MODEL = ModelDescription(
    architecture="LlamaForCausalLM", dtype="float32", vocab_size=9, max_model_len=99, layers=(LAYER,), weights_suffix=".gguf"
)


def state(
    name: str,
    capabilities: Any = None,
    *,
    slot: str = "attention",
    distribution: str = "slotwise",
    status: PluginStatus = PluginStatus.LOADED,
    **rest: Any,
) -> PluginState:
    component = Component(slot=slot, name=name, implementation="m:C", api=">=1", summary="", capabilities=capabilities)
    info = EntryPointInfo(slot=slot, name=name, value="m", distribution=distribution, version="1.2")
    return PluginState(info=info, status=status, component=component if status is PluginStatus.LOADED else None, **rest)


def backend(name: str, preference: Mapping[str, int] | None = None, *, distribution: str = "slotwise", **claims: Any) -> PluginState:
    capabilities = AttentionCapabilities(preference={"cpu": 1} if preference is None else preference, **claims)
    return state(name, capabilities, distribution=distribution)


def resolve(states: list[PluginState], use: str = "auto", **needs: Any) -> Resolution:
    return resolve_attention(**({"use": use, "states": states, "machine": CPU, "model": MODEL} | needs))


def refused(states: list[PluginState], use: str = "auto", **needs: Any) -> Resolution:
    with pytest.raises(ResolutionError) as raised:
        resolve(states, use, **needs)
    assert raised.value.resolution is not None
    for candidate in raised.value.resolution.candidates:
        if use in ("auto", candidate.name):
            for refusal in candidate.refusals:
                assert refusal.describe() in str(raised.value)
    return raised.value.resolution


# claims of the backend, needs of the engine -> predicate, wanted, offered, part of the change
PREDICATES = [
    ({"devices": ("cuda",)}, {}, ("device", "cpu", "cuda", 'device = "cuda"')),
    ({"dtypes": ("bfloat16", "float16")}, {}, ("dtype", "float32", "bfloat16, float16", 'model.dtype = "bfloat16"')),
    ({}, {"dtype": "bfloat16"}, ("dtype", "bfloat16", "float32", 'model.dtype = "float32"')),
    ({}, {"kv_dtype": "int8"}, ("kv_dtype", "int8", "auto", 'kv_cache.dtype = "auto"')),
    ({"kv_dtypes": ("int8",)}, {}, ("kv_dtype", "auto", "int8", 'kv_cache.dtype = "int8"')),
    ({"head_dims": (128, 256)}, {}, ("head_dim", "64", "128, 256", "a model with head_dim 128, 256")),
    ({"head_dim_multiple_of": 48}, {}, ("head_dim", "64", "multiples of 48", "another backend")),
    ({"max_head_dim": 32}, {}, ("head_dim", "64", "at most 32", "another backend")),
    ({"block_sizes": (32, 128)}, {}, ("block_size", "16", "32, 128", "kv_cache.block_size = 32")),
    ({"block_size_multiple_of": 16}, {"block_size": 40}, ("block_size", "40", "multiples of 16", "kv_cache.block_size = 32")),
    ({"block_size_multiple_of": 16}, {"block_size": 1}, ("block_size", "1", "multiples of 16", "kv_cache.block_size = 16")),
    ({"kv_layouts": ("hnd",)}, {"kv_layout": "nhd"}, ("kv_layout", "nhd", "hnd", 'kv_cache.layout = "hnd"')),
    ({}, {"layers": (WINDOW,)}, ("layer_kind", "sliding_window", "full", "another backend for sliding_window layers")),
    ({}, {"layers": (LAYER, WINDOW)}, ("layer_kind", "sliding_window", "full", "attention.per_kind.sliding_window")),
    ({}, {"layers": (replace(LAYER, attention_type="cross"),)}, ("attention_type", "cross", "decoder", "another backend")),
    ({}, {"layers": (replace(LAYER, logits_soft_cap=50.0),)}, ("logits_soft_cap", "yes", "no", "claims logits_soft_cap")),
    ({}, {"layers": (replace(LAYER, has_alibi=True),)}, ("alibi", "yes", "no", "claims alibi")),
    ({}, {"layers": (replace(LAYER, has_sinks=True),)}, ("sinks", "yes", "no", "claims sinks")),
    ({}, {"layers": (replace(LAYER, causal=False),)}, ("non_causal", "yes", "no", "claims non_causal")),
    ({"kv_sharing": False}, {"layers": (replace(LAYER, kv_sharing_target="l9"),)}, ("kv_sharing", "yes", "no", "claims kv_sharing")),
    ({}, {"features": ("lse",)}, ("lse", "yes", "no", "claims lse")),
    ({}, {"features": ("batch_invariant",)}, ("batch_invariant", "yes", "no", "claims batch_invariant")),
    ({}, {"layers": (MLA,)}, ("mla", "yes", "no", "claims mla")),
    ({"mla": True, "mla_dims": ((576, 512),)}, {"layers": (MLA,)}, ("mla_dims", "(80, 64)", "(576, 512)", "a model with (576, 512)")),
    (
        {"sinks": True, "alibi": True, "not_together": (("sinks", "alibi"),)},
        {"layers": (LAYER, replace(LAYER, has_sinks=True, has_alibi=True))},
        ("combination", "sinks with alibi", "sinks or alibi", "another backend"),
    ),
    (
        {"layer_kinds": ("full", "sliding_window"), "kv_dtypes": ("auto", "int8"), "not_together": (("sliding_window", "int8"),)},
        {"layers": (WINDOW,), "kv_dtype": "int8"},
        ("combination", "sliding_window with int8", "sliding_window or int8", "another backend"),
    ),
    (
        {"lse": True, "sinks": True, "not_together": (("sinks", "lse"),)},
        {"layers": (replace(LAYER, has_sinks=True),), "features": ("lse",)},
        ("combination", "sinks with lse", "sinks or lse", "another backend"),
    ),
]


@pytest.mark.parametrize(("claims", "needs", "wanted"), PREDICATES)
@pytest.mark.parametrize("use", ["auto", "x"])
def test_each_predicate_is_refused_with_wanted_offered_and_change(
    claims: dict[str, Any], needs: dict[str, Any], wanted: tuple[str, str, str, str], use: str
) -> None:
    (candidate,) = refused([backend("x", **claims)], use, **needs).candidates
    (refusal,) = candidate.refusals
    assert (refusal.predicate, refusal.wanted, refusal.offered) == wanted[:3]
    assert wanted[3] in refusal.change


ACCEPTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({}, {"kv_dtype": "float32"}),
    ({"kv_dtypes": ("float32",)}, {}),
    ({"kv_dtypes": ("auto", "int8")}, {"kv_dtype": "int8"}),
    ({"head_dims": (64,), "head_dim_multiple_of": 8, "max_head_dim": 64}, {}),
    ({"block_sizes": (16,), "block_size_multiple_of": 16}, {}),
    ({"block_size_multiple_of": 16}, {"block_size": 48}),
    ({"kv_layouts": ("hnd",)}, {"kv_layout": "auto"}),
    ({"layer_kinds": ("sliding_window",)}, {"layers": (WINDOW,), "part": "sliding_window"}),
    ({"compute_capability": ((9, 0), None)}, {}),
    ({"logits_soft_cap": True}, {"layers": (replace(LAYER, logits_soft_cap=50.0),)}),
    ({"lse": True, "batch_invariant": True}, {"features": ("lse", "batch_invariant")}),
    ({"dtypes": ("bfloat16",)}, {"dtype": "bfloat16"}),
    ({"mla": True, "head_dims": (64,), "max_head_dim": 64}, {"layers": (MLA,)}),
    ({"mla": True, "mla_dims": ((80, 64),)}, {"layers": (MLA,)}),
    (
        {"sinks": True, "alibi": True, "not_together": (("sinks", "alibi"),)},
        {"layers": (replace(LAYER, has_sinks=True), replace(WINDOW, kind="full", has_alibi=True))},
    ),
    ({"kv_dtypes": ("auto", "int8"), "not_together": (("full", "int8"),)}, {"kv_dtype": "float32"}),
]


@pytest.mark.parametrize(("claims", "needs"), ACCEPTED)
def test_what_is_claimed_is_accepted(claims: dict[str, Any], needs: dict[str, Any]) -> None:
    assert resolve([backend("x", **claims)], **needs).chosen == "x"


@pytest.mark.parametrize(
    ("accepted", "machine", "fits"),
    [
        (((8, 0), None), HOPPER, True),
        (((8, 0), (9, 0)), HOPPER, True),
        (((8, 0), None), TURING, False),
        (((7, 5), (8, 9)), HOPPER, False),
        (((8, 0), None), replace(HOPPER, compute_capability=None), False),
        (None, TURING, True),
    ],
)
def test_compute_capability_is_a_closed_range_of_cuda_devices(accepted: Any, machine: MachineDescription, fits: bool) -> None:
    states = [backend("x", {"cuda": 1}, devices=("cuda",), compute_capability=accepted)]
    if fits:
        assert resolve(states, machine=machine).chosen == "x"
    else:
        assert [item.predicate for item in refused(states, machine=machine).candidates[0].refusals] == ["compute_capability"]


def test_every_refused_predicate_is_listed_none_hides_another() -> None:
    layers = (replace(WINDOW, logits_soft_cap=1.0, head_dim=80),)
    states = [backend("x", {}, devices=("cuda",), dtypes=("bfloat16",), head_dim_multiple_of=64)]
    (candidate,) = refused(states, layers=layers, block_size=1).candidates
    assert [item.predicate for item in candidate.refusals] == ["device", "dtype", "head_dim", "layer_kind", "logits_soft_cap", "preference"]


# (name, preference on the CPU) of backends that fit -> chosen, part of the reason
PREFERENCES = [
    ([("a", 1), ("b", 5), ("c", 3)], "b", "highest preference (5) of the 3"),
    ([("b", 5), ("a", 5)], "a", "share the highest preference 5"),
    ([("a", None), ("b", -1)], "b", "the only candidate that fits"),
    ([("a", 0), ("b", -1)], "a", "highest preference (0)"),
]


@pytest.mark.parametrize(("backends", "chosen", "reason"), PREFERENCES)
def test_auto_takes_the_highest_preference_then_the_first_name(backends: list[tuple[str, int | None]], chosen: str, reason: str) -> None:
    resolution = resolve([backend(name, {} if rank is None else {"cpu": rank}) for name, rank in backends])
    assert resolution.chosen == chosen
    assert reason in resolution.reason
    assert [item.name for item in resolution.candidates if item.chosen] == [chosen]


def test_a_component_without_preference_is_never_chosen_by_auto_and_the_trace_says_so() -> None:
    states = [backend("x", {"cuda": 9})]
    (candidate,) = refused(states).candidates
    assert candidate.preference is None
    assert "never chosen by auto" in candidate.refusals[0].offered
    assert 'use = "x"' in candidate.refusals[0].change
    assert resolve(states, "x").chosen == "x"


def test_third_parties_take_part_by_their_stated_preference() -> None:
    resolution = resolve([backend("built_in", {"cpu": 10}), backend("theirs", {"cpu": 11}, distribution="their-dist")])
    assert resolution.chosen == "theirs"
    assert "their-dist 1.2" in resolution.describe()


def test_an_explicit_choice_is_obeyed_though_others_are_preferred() -> None:
    resolution = resolve([backend("a", {"cpu": 1}), backend("b", {"cpu": 99})], "a")
    assert (resolution.chosen, resolution.reason) == ("a", "asked for by name")


def test_a_refused_explicit_choice_never_falls_back() -> None:
    resolution = refused([backend("a", dtypes=("bfloat16",)), backend("b")], "a")
    assert resolution.chosen is None
    assert not any(candidate.chosen for candidate in resolution.candidates)


def test_a_broken_component_is_listed_with_cause_and_cure_and_the_others_are_weighed() -> None:
    error = ImportError("no")
    broken = state("a", status=PluginStatus.BROKEN, cause="importing m raised ImportError.", cure="reinstall.", error=error)
    resolution = resolve([broken, backend("b")])
    assert resolution.chosen == "b"
    assert (
        resolution.candidates[0].refusals[0].describe()
        == "state: wanted loaded, offered broken: importing m raised ImportError. (reinstall.)"
    )
    with pytest.raises(ResolutionError) as raised:
        resolve([broken, backend("b")], "a")
    assert raised.value.__cause__ is error


def test_an_unavailable_component_keeps_its_preference_in_the_trace() -> None:
    sound = backend("a", {"cpu": 60})
    lacking = replace(sound, status=PluginStatus.UNAVAILABLE, cause='it requires "x".', cure="install x")
    resolution = resolve([lacking, backend("b")])
    assert resolution.chosen == "b"
    assert (resolution.candidates[0].preference, resolution.candidates[0].refusals[0].predicate) == (60, "state")


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(ComponentNotFoundError, match='Did you mean "torch_sdpa"'):
        resolve([backend("torch_sdpa")], "torch_spda")


def test_an_empty_slot_is_an_error_that_says_so() -> None:
    with pytest.raises(ResolutionError, match="nothing is installed"):
        resolve([])


def test_the_part_is_named_in_trace_and_error() -> None:
    with pytest.raises(ResolutionError, match=r"^attention\.decode: "):
        resolve([backend("a", {})], part="decode")
    assert resolve([backend("a")], part="decode").describe().startswith("attention.decode: a (slotwise 1.2)")


def slot_states(slot: str, **capabilities: Any) -> list[PluginState]:
    return [state(name, value, slot=slot) for name, value in capabilities.items()]


GGUF = WeightsCapabilities(suffixes=(".gguf",))
SAFETENSORS = WeightsCapabilities(suffixes=(".safetensors",))
RANDOM = WeightsCapabilities(needs_files=False)
ANY_MODEL = ModelCapabilities(preference={"cpu": 1})
LLAMA_MODEL = ModelCapabilities(architectures=("LlamaForCausalLM",), preference={"cpu": 5})
SAMPLER = SamplerCapabilities(preference={"cpu": 1})
RAW_SAMPLER = SamplerCapabilities(logprobs_modes=("raw_logprobs",), preference={"cpu": 9})

# slot, components, use, needs -> chosen, or the predicates refused by component
SLOTS: list[tuple[str, dict[str, Any], str, dict[str, Any], Any]] = [
    ("weights", {"gguf": GGUF, "random": RANDOM, "safetensors": SAFETENSORS}, "auto", {"model": MODEL}, "gguf"),
    (
        "weights",
        {"gguf": GGUF, "safetensors": SAFETENSORS},
        "auto",
        {"model": replace(MODEL, weights_suffix=".safetensors")},
        "safetensors",
    ),
    ("weights", {"random": RANDOM}, "random", {"model": MODEL}, "random"),
    ("weights", {"random": RANDOM}, "auto", {"model": MODEL}, {"random": ["needs_files"]}),
    (
        "weights",
        {"gguf": GGUF, "random": RANDOM},
        "auto",
        {"model": replace(MODEL, weights_suffix=None)},
        {"gguf": ["suffix"], "random": ["needs_files"]},
    ),
    ("weights", {"gguf": GGUF}, "auto", {}, {"gguf": ["suffix"]}),
    ("weights", {"safetensors": SAFETENSORS}, "safetensors", {"model": MODEL}, {"safetensors": ["suffix"]}),
    ("model", {"fused": LLAMA_MODEL, "transformers": ANY_MODEL}, "auto", {"machine": CPU, "model": MODEL}, "fused"),
    (
        "model",
        {"fused": LLAMA_MODEL, "transformers": ANY_MODEL},
        "auto",
        {"machine": CPU, "model": replace(MODEL, architecture="OPTForCausalLM")},
        "transformers",
    ),
    ("model", {"transformers": ANY_MODEL}, "transformers", {"machine": HOPPER, "dtype": "float16"}, {"transformers": ["device", "dtype"]}),
    ("sampler", {"fast": RAW_SAMPLER, "torch": SAMPLER}, "auto", {"machine": CPU, "logprobs_mode": "raw_logprobs"}, "fast"),
    ("sampler", {"fast": RAW_SAMPLER, "torch": SAMPLER}, "auto", {"machine": CPU, "logprobs_mode": "raw_logits"}, "torch"),
    ("sampler", {"torch": SAMPLER}, "torch", {"machine": CPU, "features": ("speculative",)}, {"torch": ["speculative"]}),
    ("scheduler", {"fcfs": None, "priority": None}, "priority", {}, "priority"),
    ("kv_cache", {"paged": None}, "auto", {"machine": CPU}, {"paged": ["preference"]}),
]


@pytest.mark.parametrize(("slot", "components", "use", "needs", "outcome"), SLOTS)
def test_the_other_slots(slot: str, components: dict[str, Any], use: str, needs: dict[str, Any], outcome: Any) -> None:
    states = slot_states(slot, **components)
    if isinstance(outcome, str):
        assert resolve_slot(slot, use=use, states=states, **needs).chosen == outcome
        return
    with pytest.raises(ResolutionError) as raised:
        resolve_slot(slot, use=use, states=states, **needs)
    assert raised.value.resolution is not None
    found = {item.name: [refusal.predicate for refusal in item.refusals] for item in raised.value.resolution.candidates}
    assert found == outcome


def test_a_resolution_is_json_able() -> None:
    resolution = resolve([backend("a"), backend("b", dtypes=("bfloat16",))])
    found = json.loads(json.dumps(resolution.to_dict()))
    assert found["chosen"] == "a"
    assert found["candidates"][1]["refusals"][0] == {
        "predicate": "dtype",
        "wanted": "float32",
        "offered": "bfloat16",
        "change": 'model.dtype = "bfloat16"',
    }


BACKENDS = st.lists(
    st.builds(
        lambda name, rank, dtype: backend(name, {} if rank is None else {"cpu": rank}, dtypes=(dtype,)),
        st.sampled_from("abcdef"),
        st.none() | st.integers(-2, 2),
        st.sampled_from(["float32", "bfloat16"]),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda item: item.name,
)


@given(BACKENDS.flatmap(lambda states: st.tuples(st.just(states), st.permutations(states))))
def test_the_choice_depends_on_the_records_alone_not_on_their_order(case: tuple[list[PluginState], list[PluginState]]) -> None:
    states, permuted = case
    fitting = [item for item in states if item.component is not None and _fits(item.component.capabilities)]
    if fitting:
        best = min(fitting, key=lambda item: (-item.component.capabilities.preference["cpu"], item.name))  # type: ignore[union-attr]
        assert resolve(states).chosen == resolve(permuted).chosen == best.name
    else:
        assert all(candidate.refusals for candidate in refused(states).candidates)


def _fits(capabilities: AttentionCapabilities) -> bool:
    return "cpu" in capabilities.preference and "float32" in capabilities.dtypes


def test_resolving_imports_no_torch() -> None:
    code = "import sys\nimport slotwise.plugin.resolver\nassert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
