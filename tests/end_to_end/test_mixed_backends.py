"""Layers and phases on different backends: the same greedy tokens as one backend alone, and each call made where it was asked for."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from transformers import Gemma3TextConfig, PreTrainedModel

from slotwise import LLM, SamplingParams
from slotwise.engine.front_end import resolve_config
from slotwise.engine.plan import plan_engine
from slotwise.errors import PluginError
from slotwise.plugin.registry import ComponentRegistry

if TYPE_CHECKING:
    from conftest import SharedModel

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SLOW = {"triton"}
"""On a CPU these run in an interpreter: few tokens, few engines."""
CLASSES = {"reference": "ReferenceAttention", "torch_sdpa": "TorchSdpaAttention"}


def prompts(lengths: tuple[int, ...]) -> list[list[int]]:
    generator = random.Random(4)
    return [[generator.randrange(1, 128) for _ in range(length)] for length in lengths]


PROMPTS = prompts((1, 7, 13, 30))


def tokens(llm: LLM, batch: list[list[int]] = PROMPTS, params: SamplingParams = GREEDY) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(batch, params, use_tqdm=False)]


@pytest.fixture(scope="module")
def gemma(
    tmp_path_factory: pytest.TempPathFactory, save_tiny_model: Callable[..., PreTrainedModel], shared_model: Callable[..., SharedModel]
) -> SharedModel:
    """Five layers in Gemma 3's manner: two with a window of 12, one full, and again two with a window."""
    path = tmp_path_factory.mktemp("gemma")
    config = Gemma3TextConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        sliding_window=12,
        sliding_window_pattern=3,
        query_pre_attn_scalar=16,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    save_tiny_model(path, config)
    return shared_model(str(path), dtype="float32", max_model_len=64, block_size=4)


@pytest.fixture(scope="module")
def expected(gemma: SharedModel) -> list[list[int]]:
    return tokens(gemma.engine(attention="reference"))


def _backends(source: str) -> list[str]:
    """Installed backends that can serve the model on this CPU."""
    found = []
    for name in sorted(set(ComponentRegistry().names("attention")) - {"reference"}):
        try:
            plan_engine(resolve_config(source, None, {"attention": name, "dtype": "float32"}))
        except PluginError:
            continue
        found.append(name)
    return found


@pytest.fixture(scope="module")
def others(gemma: SharedModel) -> list[str]:
    return _backends(gemma.source)


def mixes(name: str) -> Iterator[dict[str, Any]]:
    yield {"use": name, "per_kind": {"full": "reference"}}
    yield {"use": "reference", "per_kind": {"full": name}}
    yield {"use": name, "per_phase": {"decode": "reference"}}
    yield {"use": "reference", "per_phase": {"decode": name}}
    yield {"use": "reference", "per_kind": {"sliding_window": name}, "per_phase": {"decode": name}}
    yield {"use": name, "per_kind": {"full": "reference"}, "per_phase": {"prefill": "reference"}}


def test_every_mix_with_the_reference_gives_the_tokens_of_one_backend(
    gemma: SharedModel, others: list[str], expected: list[list[int]], assert_idle: Callable[[LLM], None]
) -> None:
    assert "torch_sdpa" in others
    for name in sorted(set(others) - SLOW):
        for mix in list(mixes(name)) if name == "torch_sdpa" else list(mixes(name))[4:]:
            llm = gemma.engine(attention=mix, max_num_batched_tokens=9, max_num_seqs=3)
            assert tokens(llm) == expected, mix
            assert_idle(llm)


def test_three_backends_share_one_batch(gemma: SharedModel, others: list[str], expected: list[list[int]]) -> None:
    third = next((name for name in others if name not in ("torch_sdpa", *SLOW)), "torch_sdpa")
    mix = {"use": "torch_sdpa", "per_kind": {"full": third}, "per_phase": {"decode": "reference"}}
    assert tokens(gemma.engine(attention=mix, max_num_batched_tokens=9, max_num_seqs=3)) == expected


def test_an_interpreted_backend_mixes_too(gemma: SharedModel, others: list[str]) -> None:
    few, params = prompts((3, 14)), SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    wanted = tokens(gemma.engine(attention="reference"), few, params)
    for name in sorted(SLOW & set(others)):
        mix = {"use": "torch_sdpa", "per_kind": {"full": name}, "per_phase": {"decode": "reference"}}
        assert tokens(gemma.engine(attention=mix), few, params) == wanted


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """(class, layer) -> number of `forward` calls of the built-in backends."""
    from slotwise_backends.reference import ReferenceAttention
    from slotwise_backends.torch_sdpa import TorchSdpaAttention

    counted: Counter[tuple[str, str]] = Counter()
    for backend in (ReferenceAttention, TorchSdpaAttention):
        original = backend.forward

        def counting(self: Any, call: Any, original: Any = original) -> None:
            counted[type(self).__name__, call.layer.name] += 1
            original(self, call)

        monkeypatch.setattr(backend, "forward", counting)
    return counted


@pytest.mark.parametrize("name", ["reference", "torch_sdpa"])
def test_a_run_under_one_name_calls_that_backends_class_alone_for_every_layer(
    name: str, gemma: SharedModel, calls: Counter[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="slotwise.engine.attention_assembly")
    llm = gemma.engine(attention=name)
    tokens(llm)
    assert {key[0] for key in calls} == {CLASSES[name]}
    assert {key[1] for key in calls} == {f"layers.{index}.attention" for index in range(5)}
    assert len(set(calls.values())) == 1  # every layer the same number of times: none was served elsewhere
    lines = [record.getMessage() for record in caplog.records if "Attention backend" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith(f"Attention backend {name} (slotwise ")
    assert lines[0].endswith("serves layers.0.attention .. layers.4.attention (5)")


def test_a_mixed_run_calls_each_class_for_its_own_layers_and_phases(
    gemma: SharedModel, calls: Counter[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="slotwise.engine.attention_assembly")
    tokens(gemma.engine(attention={"use": "torch_sdpa", "per_kind": {"full": "reference"}}))
    assert {key for key in calls if key[0] == "ReferenceAttention"} == {("ReferenceAttention", "layers.2.attention")}
    assert ("TorchSdpaAttention", "layers.2.attention") not in calls
    lines = [record.getMessage() for record in caplog.records if "Attention backend" in record.getMessage()]
    assert [line.split(" serves ")[1] for line in lines] == [
        "layers.0.attention .. layers.1.attention (2), layers.3.attention .. layers.4.attention (2)",
        "layers.2.attention",
    ]
    calls.clear()
    tokens(gemma.engine(attention={"use": "torch_sdpa", "per_phase": {"decode": "reference"}}), PROMPTS[2:3])
    by_class = Counter({name: sum(n for key, n in calls.items() if key[0] == name) for name in CLASSES.values()})
    assert by_class["TorchSdpaAttention"] == 5  # one prefill
    assert by_class["ReferenceAttention"] == 5 * 11  # the other eleven tokens


def test_a_backend_that_cannot_serve_is_an_error_and_never_replaced(gemma: SharedModel) -> None:
    with pytest.raises(PluginError, match=r'no component "nonsense" in the slot attention'):
        gemma.engine(attention={"use": "torch_sdpa", "per_phase": {"decode": "nonsense"}})
    with pytest.raises(PluginError, match="kv_dtype: wanted int9, offered auto"):
        gemma.engine(attention="reference", kv_cache={"dtype": "int9"})
