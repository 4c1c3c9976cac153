"""SmolLM2's greedy tokens equal those of `transformers` on the same weights, however the work is cut, cached, preempted or computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from transformers import PreTrainedModel

from slotwise import LLM, SamplingParams

if TYPE_CHECKING:
    from conftest import SharedModel

pytestmark = pytest.mark.slow

LENGTHS = (1, 2, 17, 48, 95, 160, 333, 700)
NUM_NEW = 64
TEXT = (
    "The lighthouse keeper wrote every evening what the sea had brought: a plank with foreign letters, a glass float, once a "
    "whole orange crate. He numbered the finds and drew them with care, for he believed that one day somebody would come and ask. "
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_NEW, ignore_eos=True)


@pytest.fixture(scope="module")
def prompts(smollm2: SharedModel) -> list[list[int]]:
    """Real text of several lengths, no two with a common start."""
    tokenizer = smollm2.engine().tokenizer
    assert tokenizer is not None
    found = []
    for index, length in enumerate(LENGTHS):
        ids = tokenizer.encode(f"{index} {TEXT}" + TEXT * 16)
        found.append(ids[index : index + length])
    assert [len(ids) for ids in found] == list(LENGTHS)
    return found


@pytest.fixture(scope="module")
def expected(smollm2_reference: PreTrainedModel, prompts: list[list[int]], greedy_of: Callable[..., list[list[int]]]) -> list[list[int]]:
    return greedy_of(smollm2_reference, prompts, NUM_NEW)


def tokens(llm: LLM, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate([list(prompt) for prompt in prompts], GREEDY, use_tqdm=False)]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="one big budget"),
        pytest.param({"max_num_batched_tokens": 32, "max_num_seqs": 8}, id="budget of 32"),
        pytest.param({"kv_cache": {"num_blocks": 60}}, id="preempted"),
        pytest.param({"kv_cache": {"num_blocks": 60, "enable_prefix_caching": False}}, id="preempted, no prefix cache"),
        pytest.param({"block_size": 1}, id="blocks of 1"),
        pytest.param(
            {"attention": "torch_sdpa", "max_num_batched_tokens": 32, "max_num_seqs": 8, "block_size": 48}, id="torch_sdpa, budget of 32"
        ),
        pytest.param({"attention": {"use": "auto", "per_phase": {"prefill": "reference"}}}, id="prefill by the reference"),
        pytest.param({"scheduler": "priority", "block_size": 48}, id="priority, blocks of 48"),
    ],
)
def test_greedy_tokens_equal_transformers(
    settings: dict[str, Any], smollm2: SharedModel, prompts: list[list[int]], expected: list[list[int]], assert_idle: Callable[[LLM], None]
) -> None:
    llm = smollm2.engine(**settings)
    preemptions: list[int] = []
    on_schedule = llm.engine.core.scheduler.schedule

    def schedule() -> Any:
        scheduled = on_schedule()
        preemptions.append(len(scheduled.preempted_request_ids))
        return scheduled

    llm.engine.core.scheduler.schedule = schedule  # type: ignore[method-assign]
    assert tokens(llm, prompts) == expected
    assert (sum(preemptions) > 0) == ("num_blocks" in settings.get("kv_cache", {}))
    assert_idle(llm)


@pytest.mark.parametrize("attention", ["auto", "torch_sdpa"])
def test_a_warm_prefix_cache_changes_nothing_but_the_work(
    attention: str, smollm2: SharedModel, prompts: list[list[int]], expected: list[list[int]], assert_idle: Callable[[LLM], None]
) -> None:
    llm = smollm2.engine(attention=attention)
    cold = llm.generate(prompts, GREEDY, use_tqdm=False)
    warm = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in cold] == expected
    assert [output.outputs[0].token_ids for output in warm] == expected
    assert [output.num_cached_tokens for output in cold] == [0] * len(LENGTHS)
    assert [output.num_cached_tokens for output in warm] == [(length - 1) // 16 * 16 for length in LENGTHS]
    assert_idle(llm)
