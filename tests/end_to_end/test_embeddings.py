"""Prompts as vectors: those of transformers on the same weights, whatever way the engine takes to them."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, PreTrainedModel

from slotwise import LLM, AsyncLLM, PoolingParams, SamplingParams
from slotwise.errors import InvalidRequestError, PromptTooLongError

HIDDEN_SIZE = 48
MAX_MODEL_LEN = 64
POISON = 9
"""Token whose embedding is NaN in the poisoned model."""
PROMPTS = [[3, 5, 8], [1], [7, 2, 4, 6, 1, 3, 5] * 5, list(range(10, 40)), [11, 12] * 32]
SETTINGS: dict[str, dict[str, Any]] = {
    "roomy": {},
    "chunked": {"max_num_batched_tokens": 7, "max_num_seqs": 4, "block_size": 3},
    "preempting": {"block_size": 4, "max_num_batched_tokens": 16, "max_num_seqs": 8, "kv_cache": {"num_blocks": 17}},
    "pipelined": {"scheduler": {"async_scheduling": True, "max_num_batched_tokens": 9, "max_num_seqs": 4}},
    "no_cache": {"enable_prefix_caching": False},
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, save_tiny_model: Callable[..., PreTrainedModel]) -> tuple[Path, PreTrainedModel]:
    path = tmp_path_factory.mktemp("embedding_model")
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_MODEL_LEN,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    return path, save_tiny_model(path, config)


@pytest.fixture(scope="module")
def engines(saved: tuple[Path, PreTrainedModel], shared_model: Any) -> Any:
    return shared_model(str(saved[0]), dtype="float32")


@pytest.fixture(scope="module")
def llm(engines: Any) -> LLM:
    engine: LLM = engines.engine()
    return engine


@pytest.fixture(scope="module")
def expected(saved: tuple[Path, PreTrainedModel]) -> Callable[[Sequence[int], str, bool], list[float]]:
    def vector(prompt: Sequence[int], pooling: str, normalize: bool) -> list[float]:
        with torch.inference_mode():
            states = saved[1](torch.tensor([list(prompt)]), output_hidden_states=True).hidden_states[-1][0].double()
        pooled = {"last": states[-1], "cls": states[0], "mean": states.mean(dim=0)}[pooling]
        values: list[float] = (pooled / pooled.norm() if normalize else pooled).tolist()
        return values

    return vector


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
def test_vectors_are_those_of_transformers(
    engines: Any, setting: str, pooling: str, expected: Callable[..., list[float]], assert_idle: Callable[[LLM], None]
) -> None:
    llm = engines.engine(**SETTINGS[setting])
    for _ in range(2):  # the second time with whatever the cache holds
        outputs = llm.embed(PROMPTS, PoolingParams(pooling=pooling), use_tqdm=False)
        for prompt, output in zip(PROMPTS, outputs, strict=True):
            assert output.prompt_token_ids == prompt
            assert output.outputs.embedding == pytest.approx(expected(prompt, pooling, True), abs=2e-5)
    assert_idle(llm)


def test_vectors_beside_requests_that_generate(llm: LLM, expected: Callable[..., list[float]]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12)
    alone = llm.generate(PROMPTS[:3], params, use_tqdm=False)
    for prompt in PROMPTS[:3]:
        llm.engine.add_request(prompt, params, request_id="text")
        llm.engine.add_pooling_request(prompt, PoolingParams(pooling="mean"), request_id="vector")
    ended = []
    while llm.engine.has_unfinished_requests:
        ended += [output for output in llm.engine.step() if output.finished]
    vectors = [output.embedding for output in ended if output.request_id == "vector"]
    texts = [output.outputs[0].token_ids for output in ended if output.request_id == "text"]
    assert sorted(texts) == sorted(output.outputs[0].token_ids for output in alone)
    for prompt, vector in zip(PROMPTS[:3], vectors, strict=True):
        assert vector == pytest.approx(expected(prompt, "mean", True), abs=2e-5)


def test_a_request_for_a_vector_ends_with_stop_and_no_token(llm: LLM) -> None:
    llm.engine.add_pooling_request([1, 2, 3], request_id="vector")
    (output,) = [output for _ in range(3) for output in llm.engine.step()]
    assert output.finished
    assert output.outputs[0].finish_reason == "stop"
    assert output.outputs[0].token_ids == []
    assert output.prompt_logprobs is None


def test_raw_and_shortened_vectors(llm: LLM, expected: Callable[..., list[float]]) -> None:
    (raw,) = llm.embed(PROMPTS[3], PoolingParams(pooling="mean", normalize=False), use_tqdm=False)
    assert raw.outputs.embedding == pytest.approx(expected(PROMPTS[3], "mean", False), rel=1e-4, abs=2e-5)
    (short,) = llm.embed(PROMPTS[3], PoolingParams(pooling="mean", dimensions=5), use_tqdm=False)
    head = torch.tensor(raw.outputs.embedding[:5], dtype=torch.float64)
    assert short.outputs.embedding == pytest.approx((head / head.norm()).tolist(), abs=1e-6)
    assert short.outputs.hidden_size == 5


def test_a_prompt_may_fill_the_context_but_not_more(llm: LLM, expected: Callable[..., list[float]]) -> None:
    prompt = [1 + place % 60 for place in range(MAX_MODEL_LEN)]
    (output,) = llm.embed(prompt, use_tqdm=False)
    assert output.outputs.embedding == pytest.approx(expected(prompt, "last", True), abs=2e-5)
    with pytest.raises(PromptTooLongError, match=f"has {MAX_MODEL_LEN + 1} tokens.*holds {MAX_MODEL_LEN}.*at most {MAX_MODEL_LEN}"):
        llm.embed([*prompt, 1], use_tqdm=False)
    with pytest.raises(PromptTooLongError, match=f"at most {MAX_MODEL_LEN - 1}"):
        llm.generate(prompt, use_tqdm=False)


def test_last_reads_the_prefix_cache_and_the_others_do_not(engines: Any) -> None:
    llm = engines.engine(block_size=4)
    cached = {}
    for pooling in ("last", "mean", "cls"):
        llm.embed(PROMPTS[3], PoolingParams(pooling=pooling), use_tqdm=False)
        cached[pooling] = llm.embed(PROMPTS[3], PoolingParams(pooling=pooling), use_tqdm=False)[0].num_cached_tokens
    assert cached == {"last": 28, "mean": 0, "cls": 0}


def test_similarity_is_the_cosine_of_the_vectors(llm: LLM, expected: Callable[..., list[float]]) -> None:
    first, others = PROMPTS[0], PROMPTS[1:4]
    scores = [output.outputs.score for output in llm.score(first, others, PoolingParams(pooling="mean"), use_tqdm=False)]
    vectors = [torch.tensor(expected(prompt, "mean", True)) for prompt in (first, *others)]
    assert scores == pytest.approx([float(vectors[0] @ other) for other in vectors[1:]], abs=5e-5)
    pairs = llm.score(PROMPTS[:2], PROMPTS[:2], use_tqdm=False)
    assert [pair.outputs.score for pair in pairs] == pytest.approx([1.0, 1.0], abs=1e-6)
    with pytest.raises(InvalidRequestError, match="2 first and 3 second"):
        llm.score(PROMPTS[:2], PROMPTS[:3], use_tqdm=False)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"pooling": "max"}, "pooling must be one of last, mean, cls, got 'max'"),
        ({"normalize": 1}, "normalize must be true or false"),
        ({"dimensions": 0}, "dimensions must be an integer of at least 1"),
        ({"dimensions": True}, "dimensions must be an integer"),
        ({"dimensions": HIDDEN_SIZE + 1}, f"dimensions is {HIDDEN_SIZE + 1}, but the model's vectors have {HIDDEN_SIZE}"),
    ],
)
def test_refuses_what_makes_no_vector(llm: LLM, params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        llm.embed([1, 2], PoolingParams(**params), use_tqdm=False)


def test_nan_hidden_states_are_that_requests_error_alone(saved: tuple[Path, PreTrainedModel], tmp_path: Path) -> None:
    weights = load_file(saved[0] / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON] = math.nan
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((saved[0] / "config.json").read_text())
    llm = LLM(str(tmp_path), dtype="float32", attention="torch_sdpa")
    good, bad, other = llm.embed([[1, 2, 3], [1, POISON, 3], [4, 5]], use_tqdm=False)
    assert good.error is None
    assert other.error is None
    assert len(good.outputs.embedding) == HIDDEN_SIZE
    assert bad.outputs.embedding == []
    assert bad.error is not None
    assert "unusable" in bad.error
    (pair,) = llm.score([1, 2], [1, POISON], use_tqdm=False)
    assert pair.error is not None
    assert math.isnan(pair.outputs.score)


def _copy_model(saved: Path, target: Path, modules: list[tuple[str, str]], pooling: dict[str, Any]) -> Path:
    """A model with the files that sentence-transformers writes."""
    for name in ("config.json", "model.safetensors"):
        (target / name).write_bytes((saved / name).read_bytes())
    listed = [{"idx": place, "path": path, "type": f"sentence_transformers.models.{kind}"} for place, (kind, path) in enumerate(modules)]
    (target / "modules.json").write_text(json.dumps(listed))
    (target / "1_Pooling").mkdir()
    (target / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return target


@pytest.mark.parametrize("normalizes", [True, False])
@pytest.mark.parametrize(("key", "pooling"), [("lasttoken", "last"), ("mean_tokens", "mean"), ("cls_token", "cls")])
def test_the_models_own_way_is_the_default(
    saved: tuple[Path, PreTrainedModel], tmp_path: Path, key: str, pooling: str, normalizes: bool, expected: Callable[..., list[float]]
) -> None:
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), *([("Normalize", "2_Normalize")] if normalizes else [])]
    modes = {f"pooling_mode_{name}": name == key for name in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")}
    path = _copy_model(saved[0], tmp_path, modules, {"word_embedding_dimension": HIDDEN_SIZE, **modes})
    (output,) = LLM(str(path), dtype="float32").embed(PROMPTS[0], use_tqdm=False)
    assert output.outputs.embedding == pytest.approx(expected(PROMPTS[0], pooling, normalizes), rel=1e-4, abs=2e-5)


@pytest.mark.parametrize(
    ("modules", "modes", "obstacle"),
    [
        ([("Transformer", ""), ("Pooling", "1_Pooling")], {"pooling_mode_max_tokens": True}, "own pooling is pooling_mode_max_tokens"),
        ([("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense")], {"pooling_mode_mean_tokens": True}, "through Dense"),
    ],
)
def test_a_way_that_is_not_there_must_be_replaced_by_the_caller(
    saved: tuple[Path, PreTrainedModel], tmp_path: Path, modules: list[tuple[str, str]], modes: dict[str, Any], obstacle: str
) -> None:
    llm = LLM(str(_copy_model(saved[0], tmp_path, modules, modes)), dtype="float32")
    with pytest.raises(InvalidRequestError, match=obstacle):
        llm.embed(PROMPTS[0], use_tqdm=False)
    assert llm.embed(PROMPTS[0], PoolingParams(pooling="mean"), use_tqdm=False)[0].outputs.embedding


def test_async_vectors_and_a_consumer_that_leaves(
    saved: tuple[Path, PreTrainedModel], llm: LLM, expected: Callable[..., list[float]]
) -> None:
    async def run() -> None:
        async with AsyncLLM(str(saved[0]), dtype="float32", max_num_batched_tokens=4, max_num_seqs=4) as engine:
            outputs = await asyncio.gather(*(engine.embed(prompt) for prompt in PROMPTS))
            for prompt, output in zip(PROMPTS, outputs, strict=True):
                assert output.outputs.embedding == pytest.approx(expected(prompt, "last", True), abs=2e-5)
            task = asyncio.create_task(engine.embed(PROMPTS[4], PoolingParams(pooling="mean")))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while not engine.stats().is_idle:
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(run(), timeout=60))
