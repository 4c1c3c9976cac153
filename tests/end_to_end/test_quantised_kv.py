"""Engines whose KV cache stores one byte per element: near the plain engine's answers, and the same text however the work is cut."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from slotwise import LLM, SamplingParams
from slotwise.engine.kv_scales import HEAD_ROOM
from slotwise.errors import KVSanitizerError
from slotwise.interfaces.model import ForwardBatch, ModelOutput
from slotwise_backends.reference import ReferenceAttention

if TYPE_CHECKING:
    from conftest import SharedModel

DTYPES = ("int8", "float8_e4m3fn")
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
TEXT = "The quick brown fox jumps over the lazy dog, and then the dog barks at the fox. After that, the two of them"


def prompts() -> list[list[int]]:
    generator = random.Random(9)
    shared = [generator.randrange(1, 256) for _ in range(21)]
    return [*([generator.randrange(1, 256) for _ in range(length)] for length in (1, 5, 30)), shared, [*shared, 7, 8], [*shared[:14], 9]]


def tokens(llm: LLM, batch: list[list[int]]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(batch, GREEDY, use_tqdm=False)]


def engine(tiny: SharedModel, dtype: str, backend: str = "reference", **settings: Any) -> LLM:
    kv_cache = {"dtype": dtype, "num_blocks": 80, **settings.pop("kv_cache", {})}
    return tiny.engine(**{"attention": backend, "max_model_len": 64, "block_size": 4, "max_num_seqs": 6, **settings, "kv_cache": kv_cache})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 8, "block_size": 3},
        {"kv_cache": {"num_blocks": 16}},
        {"kv_cache": {"use": "radix", "num_blocks": 40}},
        {"kv_cache": {"layout": "hnd"}},
        {"attention": {"use": "reference", "per_phase": {"decode": "torch_sdpa"}}},
    ],
    ids=["chunked", "preempting", "block copies", "heads outside", "split phases"],
)
def test_text_does_not_depend_on_how_the_work_is_cut(dtype: str, settings: dict[str, Any], tiny: SharedModel) -> None:
    wanted = tokens(engine(tiny, dtype), prompts())
    llm = engine(tiny, dtype, **settings)
    for state in ("cold", "with prefix hits"):
        assert tokens(llm, prompts()) == wanted, state


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_layer_has_its_own_scales_and_they_depend_on_the_model_alone(dtype: str, tiny: SharedModel) -> None:
    first, second = (engine(tiny, dtype, backend).engine.core.executor.attention.layers for backend in ("reference", "torch_sdpa"))  # type: ignore[attr-defined]
    assert [bound.scales for bound in first] == [bound.scales for bound in second]
    assert len({scale for bound in first for scale in (bound.scales.k, bound.scales.v)}) == 2 * len(first)
    assert {str(bound.kv_cache.dtype) for bound in first} == {f"torch.{dtype}"}
    assert all(bound.scales.k != 1.0 for bound in first)
    plain = engine(tiny, "auto").engine.core.executor.attention.layers  # type: ignore[attr-defined]
    assert {(bound.scales.k, bound.scales.v) for bound in plain} == {(1.0, 1.0)}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_prompt_like_the_calibrating_one_uses_the_dtypes_range(dtype: str, tiny: SharedModel) -> None:
    """With a head room of 1.25, K and V of any ordinary prompt fill a good part of the range, and little is clamped."""
    llm = engine(tiny, dtype, max_num_seqs=1)
    tokens(llm, [prompts()[2]])
    largest = 127.0 if dtype == "int8" else 448.0
    for bound in llm.engine.core.executor.attention.layers:  # type: ignore[attr-defined]
        stored = bound.kv_cache.float().abs()
        assert largest / (2 * HEAD_ROOM) < float(stored.max()) <= largest
        assert float((stored == largest).float().mean()) < 1e-3


@pytest.mark.parametrize("backend", ["reference", "torch_sdpa"])
def test_an_fp8_cache_passes_the_sanitizer(backend: str, tiny: SharedModel) -> None:
    few = prompts()[2:]
    wanted = tokens(engine(tiny, "float8_e4m3fn", backend, max_num_batched_tokens=16), few)
    checked = engine(tiny, "float8_e4m3fn", backend, max_num_batched_tokens=16, kv_cache={"sanitize": True, "num_blocks": 60})
    assert tokens(checked, few) == wanted


def test_a_write_without_its_scale_is_found_by_the_sanitizer(tiny: SharedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ReferenceAttention.write_kv
    monkeypatch.setattr(ReferenceAttention, "write_kv", lambda self, write: original(self, replace(write, v_scale=1.0)))
    llm = engine(tiny, "float8_e4m3fn", kv_cache={"sanitize": True})
    with pytest.raises(KVSanitizerError, match="holds a wrong V beside the right K"):
        tokens(llm, prompts()[2:3])


def log_probabilities(model: SharedModel, backend: str, dtype: str) -> torch.Tensor:
    """[num_positions, vocab_size] of one text, computed eight tokens a step, so that all but eight keys come from the cache."""
    settings: dict[str, Any] = {"max_num_batched_tokens": 8, "max_num_seqs": 8, "kv_cache": {"dtype": dtype, "num_blocks": 20}}
    llm = model.engine(attention=backend, **settings)
    runner, logits = llm.engine.core.executor, []
    forward = runner.model.forward  # type: ignore[attr-defined]

    def recorded(batch: ForwardBatch) -> ModelOutput:
        output: ModelOutput = forward(batch)
        logits.append(output.logits)
        return output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner.model, "forward", recorded)  # type: ignore[attr-defined]
        llm.generate([TEXT], SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0), use_tqdm=False)
    return torch.cat(logits).double().log_softmax(dim=1)


@pytest.fixture(scope="module")
def plain(smollm2: SharedModel) -> torch.Tensor:
    return log_probabilities(smollm2, "torch_sdpa", "auto")


@pytest.mark.parametrize(("dtype", "bound"), [("int8", 0.03), ("float8_e4m3fn", 0.04)])
@pytest.mark.parametrize("backend", ["reference", "torch_sdpa"])
def test_next_token_distributions_stay_near_those_of_the_float32_cache(
    dtype: str, bound: float, backend: str, smollm2: SharedModel, plain: torch.Tensor
) -> None:
    """Mean KL divergence over the positions of a text, in nats. One byte resolves 1/254 of the largest value (int8), or 1/16 of each
    value (fp8)."""
    assert 0 < divergence_of(log_probabilities(smollm2, backend, dtype), plain) < bound


def divergence_of(found: torch.Tensor, plain: torch.Tensor) -> float:
    assert found.shape == plain.shape
    return float((plain.exp() * (plain - found)).sum(dim=1).mean())


def test_without_scales_the_same_measure_is_far_off(smollm2: SharedModel, plain: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotwise.engine.assembly.find_kv_scales", lambda *_, **__: {})
    assert divergence_of(log_probabilities(smollm2, "torch_sdpa", "int8"), plain) > 1.0
