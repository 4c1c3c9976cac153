"""Scheduling ahead of the model changes when things happen, never which tokens come out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from slotwise import LLM, SamplingParams

if TYPE_CHECKING:
    from conftest import SharedModel

PROMPTS = [[index + 1] * (5 * index + 1) for index in range(8)]


def ids(llm: LLM, params: Any) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 8, "max_num_seqs": 4},
        {"block_size": 4, "kv_cache": {"num_blocks": 20}},
        {"block_size": 4, "kv_cache": {"num_blocks": 20, "enable_prefix_caching": False}},
        {"scheduler": {"use": "priority"}},
    ],
)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
        SamplingParams(temperature=0.9, seed=3, max_tokens=20, ignore_eos=True),
        [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in (1, 2, 3, 20, 1, 7, 2, 11)],
    ],
    ids=["greedy", "seeded", "ragged"],
)
def test_tokens_equal_those_of_the_synchronous_engine(
    settings: dict[str, Any], params: Any, tiny: SharedModel, assert_idle: Callable[[LLM], None]
) -> None:
    expected = ids(tiny.engine(), params)
    scheduler = {**settings.get("scheduler", {}), "async_scheduling": True}
    llm = tiny.engine(**{**settings, "scheduler": scheduler})
    for _ in range(2):  # the second time with a warm cache
        assert ids(llm, params) == expected
        assert_idle(llm)
    llm.shutdown()


def test_two_steps_are_under_way(tiny: SharedModel) -> None:
    llm = tiny.engine(scheduler={"async_scheduling": True})
    llm.engine.add_request([1, 2, 3], SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True))
    assert llm.engine.step() == []
    assert llm.engine.step()[0].outputs[0].token_ids
    request = next(iter(llm.engine.core.scheduler.requests.values()))
    assert request.num_output_placeholders == 1
    assert request.num_computed_tokens == request.num_tokens
    while llm.engine.has_unfinished_requests:
        llm.engine.step()
    llm.shutdown()


def test_end_of_sequence_found_late_emits_nothing_more(tiny: SharedModel, assert_idle: Callable[[LLM], None]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=30)
    stop_at = ids(tiny.engine(), params)[3][4]
    stopping = SamplingParams(temperature=0.0, max_tokens=30, stop_token_ids=[stop_at])
    expected = ids(tiny.engine(), stopping)
    llm = tiny.engine(scheduler={"async_scheduling": True})
    assert ids(llm, stopping) == expected
    while llm.engine.core.has_work:
        llm.engine.step()
    assert_idle(llm)
    llm.shutdown()


def test_a_failing_step_loses_what_is_in_flight_and_the_engine_serves_on(tiny: SharedModel, assert_idle: Callable[[LLM], None]) -> None:
    llm = tiny.engine(scheduler={"async_scheduling": True})
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    expected = ids(llm, params)
    execute, calls = llm.engine.core.executor.execute_model, []

    def explode(scheduled: Any) -> None:
        calls.append(scheduled)
        if len(calls) == 4:
            raise RuntimeError("the device caught fire")
        execute(scheduled)

    llm.engine.core.executor.execute_model = explode  # type: ignore[method-assign]
    llm.engine.core.reset_prefix_cache()
    with pytest.raises(RuntimeError, match="caught fire"):
        ids(llm, params)
    assert_idle(llm)
    assert ids(llm, params) == expected
    llm.shutdown()


@pytest.mark.parametrize("kv_cache", ["paged", "radix"])
def test_blocks_of_a_request_aborted_in_a_step_that_fails_cannot_be_found(kv_cache: str, tiny: SharedModel) -> None:
    llm = tiny.engine(scheduler={"async_scheduling": True}, kv_cache={"use": kv_cache})
    prompt, params = [[9] * 40], SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    expected = tiny.engine().generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids
    execute, release = llm.engine.core.executor.execute_model, threading.Event()

    def explode(_: Any) -> None:
        release.wait(30)
        raise RuntimeError("the device caught fire")

    llm.engine.core.executor.execute_model = explode  # type: ignore[method-assign]
    llm.engine.add_request(prompt[0], params, request_id="aborted")
    llm.engine.add_request([1, 2, 3], params)
    llm.engine.step()
    llm.engine.abort_requests(["aborted"])
    release.set()
    with pytest.raises(RuntimeError, match="caught fire"):
        llm.engine.step()
    llm.engine.core.executor.execute_model = execute  # type: ignore[method-assign]
    again = llm.generate(prompt, params, use_tqdm=False)[0]
    assert again.num_cached_tokens == 0
    assert again.outputs[0].token_ids == expected
    llm.shutdown()
