"""The scheduler's mechanism against the rules of a step, with a real KV manager and made-up tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.engine.outputs import FinishReason
from slotwise.engine.request import Request, RequestStatus
from slotwise.engine.scheduler_limits import PauseState
from slotwise.engine.scheduler_output import ModelRunnerOutput
from slotwise.interfaces.scheduler import Chunk, Decision, SchedulerState
from slotwise.sampling_params import SamplingParams
from slotwise_schedulers.fcfs import FcfsScheduler
from slotwise_schedulers.priority import PriorityScheduler

if TYPE_CHECKING:
    from conftest import SchedulerHarness

EOS = 7


def test_a_prompt_longer_than_the_budget_is_cut_into_chunks(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness(max_num_scheduled_tokens=8)
    harness.add("a", 20, max_tokens=2)
    counts, new_tokens = [], []
    while harness.scheduler.requests:
        scheduled, outputs = harness.step()
        counts.append(scheduled.num_scheduled_tokens["a"])
        new_tokens.append(sum(len(output.new_token_ids) for output in outputs))
    assert counts == [8, 8, 4, 1]
    assert new_tokens == [0, 0, 1, 1]


def test_running_requests_are_served_before_waiting_ones_and_share_the_budget(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness(max_num_scheduled_tokens=8)
    harness.add("a", 4)
    harness.add("b", 3)
    harness.add("c", 30)
    scheduled, _ = harness.step()
    assert scheduled.num_scheduled_tokens == {"a": 4, "b": 3, "c": 1}
    scheduled, _ = harness.step()
    assert scheduled.num_scheduled_tokens == {"a": 1, "b": 1, "c": 6}
    assert [data.request_id for data in scheduled.scheduled_new_requests] == []
    assert scheduled.scheduled_cached_requests.request_ids == ["a", "b", "c"]


def test_no_more_than_max_num_seqs_run(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness(max_num_seqs=2)
    for name in "abc":
        harness.add(name, 4, max_tokens=2)
    scheduled, _ = harness.step()
    assert list(scheduled.num_scheduled_tokens) == ["a", "b"]
    assert set(harness.run()) == {"a", "b", "c"}


def test_long_prefill_threshold_caps_a_prompt_beside_others_but_not_alone(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness(long_prefill_token_threshold=5)
    harness.add("alone", 20, max_tokens=1)
    assert harness.step()[0].num_scheduled_tokens == {"alone": 20}
    harness.add("a", 20, max_tokens=1)
    harness.add("b", 20, max_tokens=1)
    assert harness.step()[0].num_scheduled_tokens == {"a": 5, "b": 5}


def test_without_chunked_prefill_a_prompt_waits_for_a_whole_budget(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness(max_num_scheduled_tokens=20, enable_chunked_prefill=False)
    harness.add("a", 12, max_tokens=1)
    harness.add("b", 12, max_tokens=1)
    assert harness.step()[0].num_scheduled_tokens == {"a": 12}
    assert harness.step()[0].num_scheduled_tokens == {"b": 12}


def test_without_chunked_prefill_no_policy_is_asked_to_cut_a_prompt(make_harness: type[SchedulerHarness]) -> None:
    class HalvesScheduler(FcfsScheduler):
        def choose_chunk(self, request: Request, num_tokens: int, state: SchedulerState) -> Chunk:
            return Chunk(num_tokens=num_tokens // 2, reason="half")

    harness = make_harness(policy=HalvesScheduler, max_num_scheduled_tokens=20, enable_chunked_prefill=False)
    harness.add("a", 12, max_tokens=1)
    assert harness.step()[0].num_scheduled_tokens == {"a": 12}


def test_a_cached_prefix_is_not_computed_again(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness()
    prompt = list(range(100, 109))
    harness.add("a", prompt, max_tokens=1)
    harness.run()
    harness.add("b", prompt, max_tokens=1)
    scheduled, outputs = harness.step()
    assert scheduled.scheduled_new_requests[0].num_computed_tokens == 8
    assert scheduled.num_scheduled_tokens == {"b": 1}
    assert outputs[0].num_cached_tokens == 8


@pytest.mark.parametrize("length", [4, 8, 16])
def test_a_wholly_cached_prompt_still_computes_its_last_block(make_harness: type[SchedulerHarness], length: int) -> None:
    harness = make_harness()
    prompt = list(range(100, 100 + length))
    harness.add("a", prompt, max_tokens=1)
    harness.run()
    harness.add("b", prompt, max_tokens=1)
    scheduled, outputs = harness.step()
    assert outputs[0].num_cached_tokens == length - 4
    assert scheduled.num_scheduled_tokens == {"b": 4}


def test_a_request_hits_blocks_that_another_computes_in_the_same_step(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness()
    prompt = list(range(100, 112))
    harness.add("a", prompt, max_tokens=1)
    harness.add("b", [*prompt, 5], max_tokens=1)
    assert harness.step()[0].num_scheduled_tokens == {"a": 12, "b": 1}
    assert harness.is_idle


def test_youngest_is_preempted_when_blocks_run_out_and_goes_on_later(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness(num_blocks=5)
    harness.add("a", 8, max_tokens=8)
    harness.add("b", 8, max_tokens=8)
    harness.step()
    scheduled, _ = harness.step()
    assert scheduled.preempted_request_ids == {"b"}
    assert scheduled.num_scheduled_tokens == {"a": 1}
    request = harness.scheduler.requests["b"]
    assert request.status is RequestStatus.PREEMPTED
    assert request.num_output_tokens == 1
    tokens = harness.run()
    assert len(tokens["a"]) == 6  # two were made before
    assert len(tokens["b"]) == 7


def test_nothing_is_admitted_in_a_step_that_preempted(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness(num_blocks=5)
    harness.add("a", 8)
    harness.add("b", 8)
    harness.step()
    harness.add("tiny", 1)
    scheduled, _ = harness.step()
    assert scheduled.preempted_request_ids == {"b"}
    assert not scheduled.scheduled_new_requests


def test_a_preempted_request_is_resumed_before_later_arrivals(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness(num_blocks=5, enable_prefix_caching=False)
    harness.add("a", 8, max_tokens=6)
    harness.add("b", 8, max_tokens=6)
    harness.step()
    harness.add("c", 4, max_tokens=2)
    order = []
    while harness.scheduler.requests:
        scheduled, _ = harness.step()
        order += [request_id for request_id in scheduled.num_scheduled_tokens if request_id not in order]
        for request_id in scheduled.scheduled_cached_requests.resumed_request_ids:
            index = scheduled.scheduled_cached_requests.request_ids.index(request_id)
            assert scheduled.scheduled_cached_requests.num_computed_tokens[index] == 0
    assert order == ["a", "b", "c"]


def test_victim_already_scheduled_in_this_step_is_undone(make_harness: type[SchedulerHarness]) -> None:
    """Known bug 13: R0 (less urgent) gets its slots first, then R1 finds none and R0 is the victim within the same step."""
    harness = make_harness(num_blocks=4, policy=PriorityScheduler, max_num_scheduled_tokens=64, enable_prefix_caching=False)
    harness.add("r0", 7, priority=5, max_tokens=6)
    harness.add("r1", 8, priority=1, max_tokens=6)
    scheduled, _ = harness.step()
    assert set(scheduled.num_scheduled_tokens) == {"r0", "r1"}
    assert [request.request_id for request in harness.scheduler.running] == ["r1", "r0"]
    harness.scheduler.running.reverse()  # r0 was admitted first
    scheduled = harness.scheduler.schedule()
    assert scheduled.num_scheduled_tokens == {"r1": 1}
    assert scheduled.total_num_scheduled_tokens == 1
    assert scheduled.scheduled_cached_requests.request_ids == ["r1"]
    assert scheduled.preempted_request_ids == {"r0"}
    assert [request.request_id for request in harness.scheduler.waiting] == ["r0"]
    harness.scheduler.update_from_output(scheduled, harness.sample(scheduled, lambda _: 50))
    harness.run()


def test_undone_victim_with_drafts_leaves_no_draft_in_the_step(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness(num_blocks=4, policy=PriorityScheduler, enable_prefix_caching=False)
    r0 = harness.add("r0", 5, priority=5)
    harness.add("r1", 8, priority=1, max_tokens=6)
    harness.step()
    harness.scheduler.running.reverse()
    r0.spec_token_ids = [1, 2]
    scheduled = harness.scheduler.schedule()
    assert scheduled.scheduled_spec_decode_tokens == {}
    assert scheduled.num_scheduled_tokens == {"r1": 1}
    assert r0.spec_token_ids == []


def test_blocks_an_undone_victim_was_to_fill_cannot_be_found(make_harness: type[SchedulerHarness]) -> None:
    """They were registered when it was scheduled, but this step will not write them."""
    harness = make_harness(num_blocks=4, policy=PriorityScheduler)
    prompt = list(range(500, 507))
    r0 = harness.add("r0", prompt, priority=5)
    harness.add("r1", 8, priority=1, max_tokens=6)
    harness.step()
    harness.scheduler.running.reverse()
    scheduled = harness.scheduler.schedule()  # r0's eighth token fills its second block, then r1 takes that away
    assert scheduled.preempted_request_ids == {"r0"}
    probe = Request(request_id="probe", prompt_token_ids=[*r0.all_token_ids, 1], sampling_params=r0.sampling_params)
    assert harness.kv_cache.find_cached_prefix(probe).num_tokens <= 4


def test_priority_orders_waiting_requests(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness(policy=PriorityScheduler, max_num_seqs=1)
    for name, priority in (("a", 3), ("b", 1), ("c", 2)):
        harness.add(name, 4, max_tokens=1, priority=priority)
    assert list(harness.run()) == ["b", "c", "a"]


def test_a_request_that_is_alone_in_a_small_pool_runs_to_the_pools_end(make_harness: type[SchedulerHarness]) -> None:
    """Known bug 15, second half: the model length is capped by what one request can hold, so it ends with `length`."""
    harness = make_harness(num_blocks=8, max_model_len=32)
    harness.add("a", 20, max_tokens=200)
    finish = None
    for _ in range(100):
        _, outputs = harness.step()
        if outputs and outputs[0].finish_reason:
            finish = outputs[0].finish_reason
            break
    assert finish is FinishReason.LENGTH
    assert harness.is_idle


def test_eos_stops_without_a_stop_reason_and_stop_ids_name_themselves(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness()
    harness.add("eos", 4)
    harness.add("stop", 4, stop_token_ids=[50])
    _, outputs = harness.step(lambda request: EOS if request.request_id == "eos" else 50)
    found = {output.request_id: (output.finish_reason, output.stop_reason) for output in outputs}
    assert found == {"eos": (FinishReason.STOP, None), "stop": (FinishReason.STOP, 50)}


def test_eos_on_the_last_allowed_token_is_a_stop(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness()
    harness.add("a", 4, max_tokens=1)
    assert harness.step(lambda _: EOS)[1][0].finish_reason is FinishReason.STOP


def test_abort_frees_whatever_the_status_and_odd_aborts_do_nothing(make_harness: type[SchedulerHarness]) -> None:
    """Known bug 19: queued, running, preempted, unknown, twice, already finished."""
    harness = make_harness(num_blocks=5, max_num_seqs=2)
    for name in ("a", "b", "queued"):
        harness.add(name, 8, max_tokens=50)
    harness.step()
    harness.step()
    assert harness.scheduler.requests["b"].status is RequestStatus.PREEMPTED
    for ids in (["queued"], ["queued"], ["nobody"], ["b"], ["a"], ["a"]):
        harness.scheduler.finish_requests(ids, RequestStatus.FINISHED_ABORTED)
    assert harness.is_idle
    assert harness.scheduler.schedule().finished_request_ids == {"a", "b", "queued"}
    harness.add("next", 8, max_tokens=3)
    assert len(harness.run()["next"]) == 3


def test_a_request_aborted_while_its_step_ran_gets_no_output(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness()
    harness.add("a", 4)
    scheduled = harness.scheduler.schedule()
    computed = harness.sample(scheduled, lambda _: 50)
    harness.scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    assert harness.scheduler.update_from_output(scheduled, computed) == []
    assert harness.is_idle


def test_unusable_logits_end_that_request_alone_and_its_blocks_are_forgotten(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness()
    prompt = list(range(100, 109))
    harness.add("bad", prompt)
    harness.add("good", 4, max_tokens=2)
    scheduled = harness.scheduler.schedule()
    outputs = harness.scheduler.update_from_output(
        scheduled, ModelRunnerOutput(request_ids=["bad", "good"], sampled_token_ids=[[], [50]], errors={"bad": "NaN"})
    )
    assert [(output.request_id, output.finish_reason, output.error) for output in outputs] == [
        ("bad", FinishReason.ERROR, "NaN"),
        ("good", None, None),
    ]
    harness.add("again", prompt, max_tokens=1)
    assert harness.scheduler.schedule().scheduled_new_requests[0].num_computed_tokens == 0


def test_a_failed_step_ends_its_requests_and_forgets_what_it_was_to_write(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness()
    prompt = list(range(100, 109))
    harness.add("a", prompt)
    harness.scheduler.fail_step(harness.scheduler.schedule())
    assert harness.is_idle
    harness.add("b", prompt, max_tokens=1)
    assert harness.step()[0].num_scheduled_tokens == {"b": 9}


def test_pausing_holds_new_requests_or_all(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness()
    harness.add("a", 4)
    harness.step()
    harness.add("b", 4)
    harness.scheduler.pause_state = PauseState.PAUSED_NEW
    assert harness.step()[0].num_scheduled_tokens == {"a": 1}
    harness.scheduler.pause_state = PauseState.PAUSED_ALL
    assert harness.step()[0].num_scheduled_tokens == {}
    harness.scheduler.pause_state = PauseState.UNPAUSED
    assert harness.step()[0].num_scheduled_tokens == {"a": 1, "b": 4}


def test_reserving_whole_prompts_admits_only_what_fits(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness(num_blocks=5, max_num_scheduled_tokens=8, reserve_whole_prompt=True)
    harness.add("a", 12, max_tokens=1)
    harness.add("b", 12, max_tokens=1)
    harness.step()
    assert [request.request_id for request in harness.scheduler.running] == ["a"]
    harness.run()


def test_a_policy_can_refuse_admission_and_cut_chunks_with_reasons(make_harness: type[SchedulerHarness]) -> None:
    class Careful(FcfsScheduler):
        def admit(self, request: object, state: SchedulerState) -> Decision:
            return Decision(allowed=state.num_running < 1, reason=f"{state.num_running} run")

        def choose_chunk(self, request: object, num_tokens: int, state: SchedulerState) -> Chunk:
            return Chunk(num_tokens=3, reason="three at a time")

    harness = make_harness(policy=Careful)
    harness.add("a", 7, max_tokens=1)
    harness.add("b", 7, max_tokens=1)
    scheduled, _ = harness.step()
    assert scheduled.num_scheduled_tokens == {"a": 3}
    assert scheduled.reasons == {"a": "0 run; three at a time", "b": "1 run"}
    harness.run()


def test_reset_of_the_prefix_cache_waits_for_requests_or_preempts_them(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness()
    harness.add("a", 9, max_tokens=3)
    harness.step()
    assert not harness.scheduler.reset_prefix_cache()
    assert harness.scheduler.reset_prefix_cache(preempt_running=True)
    scheduled, _ = harness.step()
    assert scheduled.num_scheduled_tokens == {"a": 10}
    harness.run()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 24), st.integers(1, 12), st.integers(0, 3)), min_size=1, max_size=12),
    st.integers(9, 30),
    st.sampled_from([1, 5, 16, 64]),
    st.booleans(),
    st.sampled_from([FcfsScheduler, PriorityScheduler]),
)
def test_every_request_gets_the_tokens_it_gets_alone(
    make_harness: type[SchedulerHarness],
    shapes: list[tuple[int, int, int]],
    num_blocks: int,
    budget: int,
    caching: bool,
    policy: type[FcfsScheduler],
) -> None:
    harness = make_harness(
        num_blocks=num_blocks,
        max_model_len=4 * num_blocks,
        max_num_scheduled_tokens=budget,
        enable_prefix_caching=caching,
        policy=policy,
    )
    for index, (num_prompt, max_tokens, priority) in enumerate(shapes):
        harness.add(str(index), [index % 3] * num_prompt, max_tokens=max_tokens, priority=priority)
    tokens = harness.run(lambda request: 100 + request.num_output_tokens)
    for index, (_, max_tokens, _) in enumerate(shapes):
        assert tokens[str(index)] == [100 + i for i in range(max_tokens)]


def test_blocks_that_all_running_requests_share_are_counted_where_somebody_wants_them(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness()
    shared = list(range(100, 109))
    harness.add("a", [*shared, 1], max_tokens=4)
    harness.step()
    harness.add("b", [*shared, 2], max_tokens=4)
    assert harness.step()[0].num_common_prefix_blocks == ()
    harness.scheduler.count_common_prefix = True
    assert harness.step()[0].num_common_prefix_blocks == (2,)
    harness.run()


@pytest.mark.parametrize("status", [RequestStatus.WAITING_FOR_GRAMMAR, RequestStatus.WAITING_FOR_REMOTE_KVS])
def test_a_blocked_request_is_set_aside_and_holds_up_nobody(make_harness: type[SchedulerHarness], status: RequestStatus) -> None:
    harness = make_harness(max_num_seqs=1)
    blocked = Request(
        request_id="blocked", prompt_token_ids=[1, 2, 3], sampling_params=SamplingParams(max_tokens=2, ignore_eos=True), arrival_index=-1
    )
    blocked.status = status
    harness.scheduler.add_request(blocked)
    assert not harness.scheduler.has_requests
    harness.add("other", 4, max_tokens=1)
    assert list(harness.step()[0].num_scheduled_tokens) == ["other"]
    harness.scheduler.unblock("nobody")
    harness.scheduler.unblock("blocked")
    harness.scheduler.unblock("blocked")
    assert len(harness.run()["blocked"]) == 2


def test_a_blocked_request_can_be_aborted(make_harness: type[SchedulerHarness]) -> None:
    harness = make_harness()
    blocked = Request(request_id="blocked", prompt_token_ids=[1], sampling_params=SamplingParams())
    blocked.status = RequestStatus.WAITING_FOR_GRAMMAR
    harness.scheduler.add_request(blocked)
    harness.scheduler.finish_requests(["blocked"], RequestStatus.FINISHED_ABORTED)
    assert not harness.scheduler.requests
