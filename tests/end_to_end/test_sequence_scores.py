"""Scores of sequences: the log-probabilities that transformers gives the same tokens; nothing is sampled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from slotwise import LLM, SamplingParams
from slotwise.errors import InvalidRequestError, PromptTooLongError

PROMPTS = [[3, 5, 8, 2], list(range(60, 100)), [7, 200] * 30, [4, 9]]
TEXTS = ["the cat sat", "wörld 🙂 and more of it"]


@pytest.fixture(scope="module")
def engines(tiny_model: Path, shared_model: Any) -> Any:
    return shared_model(str(tiny_model), dtype="float32")


@pytest.fixture(scope="module")
def llm(engines: Any) -> LLM:
    engine: LLM = engines.engine()
    return engine


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> Callable[[Sequence[int]], list[float]]:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()

    def logprobs(ids: Sequence[int]) -> list[float]:
        with torch.inference_mode():
            logits = model(torch.tensor([list(ids)])).logits[0].double().log_softmax(dim=-1)
        found: list[float] = logits[:-1].gather(1, torch.tensor(list(ids[1:])).unsqueeze(1)).squeeze(1).tolist()
        return found

    return logprobs


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 7, "max_num_seqs": 4, "block_size": 3},
        {"block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 32, "kv_cache": {"num_blocks": 16}},
        {"scheduler": {"async_scheduling": True, "max_num_batched_tokens": 16, "max_num_seqs": 8}},
    ],
    ids=["roomy", "chunked", "preempting", "pipelined"],
)
def test_whole_prompts_are_scored_as_by_transformers(
    engines: Any, settings: dict[str, Any], reference: Callable[..., list[float]], assert_idle: Callable[[LLM], None]
) -> None:
    llm = engines.engine(**settings)
    for _ in range(2):
        for prompt, score in zip(PROMPTS, llm.log_likelihood(PROMPTS, use_tqdm=False), strict=True):
            assert score.token_ids == prompt[1:]
            assert score.token_logprobs == pytest.approx(reference(prompt), abs=1e-4)
            assert score.log_likelihood == pytest.approx(sum(reference(prompt)), abs=1e-3)
            assert score.perplexity == pytest.approx(math.exp(-sum(reference(prompt)) / (len(prompt) - 1)), rel=1e-4)
    assert_idle(llm)


def test_continuations_of_one_prompt(llm: LLM, reference: Callable[..., list[float]]) -> None:
    prompt, ends = TEXTS[0], [" on the mat", "!", " 🙂🙂"]
    scores = llm.log_likelihood(prompt, ends, use_tqdm=False)
    for end, score in zip(ends, scores, strict=True):
        ids = llm.get_tokenizer().encode(prompt + end)  # type: ignore[union-attr]
        assert score.token_logprobs == pytest.approx(reference(ids)[-len(score.token_ids) :], abs=1e-4)
        assert score.token_ids == ids[-len(end.encode()) :]


def test_greedy_output_scores_as_greedy_and_with_its_own_logprobs(llm: LLM) -> None:
    (output,) = llm.generate(PROMPTS[1], SamplingParams(temperature=0.0, max_tokens=9, logprobs=0, ignore_eos=True), use_tqdm=False)
    ids = output.outputs[0].token_ids
    (score,) = llm.log_likelihood([PROMPTS[1]], [ids], use_tqdm=False)
    assert score.is_greedy
    assert score.log_likelihood == pytest.approx(output.outputs[0].cumulative_logprob, abs=1e-3)
    other = [(ids[0] + 1) % 256, *ids[1:]]
    assert not llm.log_likelihood([PROMPTS[1]], [other], use_tqdm=False)[0].is_greedy


def test_a_sequence_may_fill_the_context_but_not_more(llm: LLM, reference: Callable[..., list[float]]) -> None:
    ids = [1 + place % 200 for place in range(llm.max_model_len)]
    (score,) = llm.log_likelihood([ids], use_tqdm=False)
    assert score.token_logprobs == pytest.approx(reference(ids), abs=1e-3)
    with pytest.raises(PromptTooLongError, match=str(llm.max_model_len)):
        llm.log_likelihood([[*ids, 1]], use_tqdm=False)


def test_one_token_alone_has_nothing_to_score(llm: LLM) -> None:
    (score,) = llm.log_likelihood([[5]], use_tqdm=False)
    assert score.token_logprobs == []
    assert score.log_likelihood == 0.0
    assert math.isnan(score.perplexity)


@pytest.mark.parametrize(
    ("prompts", "continuations", "message"),
    [
        ("the", [""], "continuation is empty"),
        ("", ["the"], "prompt is empty"),
        (["a", "b"], ["a", "b", "c"], "2 first and 3 second"),
        ([[1, 2]], ["the"], "both be texts or both be token ids"),
    ],
)
def test_refuses_pairs_without_a_score(llm: LLM, prompts: Any, continuations: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        llm.log_likelihood(prompts, continuations, use_tqdm=False)


def test_max_tokens_0_computes_the_prompt_alone(engines: Any) -> None:
    llm = engines.engine(block_size=4)
    (output,) = llm.generate(PROMPTS[1], SamplingParams(max_tokens=0), use_tqdm=False)
    assert output.outputs[0].token_ids == []
    assert output.outputs[0].text == ""
    assert output.outputs[0].finish_reason == "length"
    (warm,) = llm.generate(PROMPTS[1], SamplingParams(temperature=0.0, max_tokens=2), use_tqdm=False)
    assert warm.num_cached_tokens == 36
