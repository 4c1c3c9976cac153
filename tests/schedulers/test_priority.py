"""Most urgent first, least urgent out."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from slotwise.engine.request import Request
from slotwise.interfaces.scheduler import SchedulerSetup
from slotwise.sampling_params import SamplingParams
from slotwise_schedulers.priority import PriorityScheduler

POLICY = PriorityScheduler(SchedulerSetup(max_num_seqs=8, max_num_scheduled_tokens=64, max_model_len=64, block_size=4))


def make_request(arrival_index: int, priority: int, arrival_time: float = 0.0) -> Request:
    return Request(
        request_id=f"r{arrival_index}",
        prompt_token_ids=[1],
        sampling_params=SamplingParams(),
        arrival_index=arrival_index,
        arrival_time=arrival_time,
        priority=priority,
    )


def test_smaller_number_goes_first_then_earlier_arrival_then_index() -> None:
    requests = [make_request(3, -1, 9.0), make_request(1, 0, 1.0), make_request(2, 0, 2.0), make_request(4, 0, 2.0), make_request(0, 5)]
    assert sorted(Random(0).sample(requests, len(requests)), key=lambda request: POLICY.order_key(request, 0.0)) == requests


def test_victim_is_the_least_urgent_and_the_reason_says_how_urgent_it_was() -> None:
    running = [make_request(0, 7), make_request(1, 0), make_request(2, 3)]
    victim = POLICY.choose_victim(running, running[1])
    assert victim.request is running[0]
    assert victim.reason == "least urgent: priority 7"


def test_blocked_request_gives_way_itself_rather_than_push_out_a_more_urgent_one() -> None:
    running = [make_request(0, 0), make_request(1, 9)]
    assert POLICY.choose_victim(running, running[1]).request is running[1]


@given(st.lists(st.tuples(st.integers(-2, 2), st.sampled_from([0.0, 1.0])), min_size=1, max_size=8), st.randoms())
def test_victim_is_the_one_that_would_be_admitted_last(specs: list[tuple[int, float]], random: Random) -> None:
    running = [make_request(index, priority, arrival_time) for index, (priority, arrival_time) in enumerate(specs)]
    random.shuffle(running)
    last = max(running, key=lambda request: POLICY.order_key(request, 0.0))
    assert POLICY.choose_victim(running, running[0]).request is last
