"""First come, first served."""

from __future__ import annotations

import random

from slotwise.engine.request import Request
from slotwise.interfaces.scheduler import ALLOWED, SchedulerSetup, SchedulerState
from slotwise.sampling_params import SamplingParams
from slotwise_schedulers.fcfs import FcfsScheduler

POLICY = FcfsScheduler(SchedulerSetup(max_num_seqs=8, max_num_scheduled_tokens=64, max_model_len=64, block_size=4))


def make_request(arrival_index: int, **fields: float) -> Request:
    request = Request(request_id=f"r{arrival_index}", prompt_token_ids=[1], sampling_params=SamplingParams(), arrival_index=arrival_index)
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def test_orders_by_arrival_whatever_the_priority() -> None:
    requests = [make_request(index, priority=-index, arrival_time=100.0 + index // 2) for index in range(6)]
    shuffled = random.Random(0).sample(requests, len(requests))
    assert sorted(shuffled, key=lambda request: POLICY.order_key(request, 0.0)) == requests


def test_preempted_request_stays_ahead_of_later_arrivals_and_behind_earlier_ones() -> None:
    waiting = [make_request(5), make_request(2, num_preemptions=3), make_request(1)]
    ordered = sorted(waiting, key=lambda request: POLICY.order_key(request, 9.0))
    assert [request.arrival_index for request in ordered] == [1, 2, 5]


def test_the_next_turn_of_a_session_arrives_with_its_input() -> None:
    next_turn, other = make_request(0, arrival_time=7.0), make_request(1, arrival_time=5.0)
    assert POLICY.order_key(other, 8.0) < POLICY.order_key(next_turn, 8.0)


def test_victim_is_the_one_admitted_last_even_if_it_is_the_blocked_one() -> None:
    running = [make_request(3), make_request(0), make_request(1)]
    victim = POLICY.choose_victim(running, running[0])
    assert victim.request is running[-1]
    assert victim.reason
    assert POLICY.choose_victim(running, running[-1]).request is running[-1]


def test_admits_everyone_and_leaves_chunks_whole() -> None:
    state = SchedulerState(now=0.0, token_budget=8, num_running=0, num_waiting=1, num_free_blocks=1, num_usable_blocks=1)
    assert POLICY.admit(make_request(0), state) == ALLOWED
    assert POLICY.choose_chunk(make_request(0), 8, state).num_tokens == 8


def test_says_that_the_head_arrived_first() -> None:
    assert POLICY.order_reason(make_request(0), 5.0) == "arrived first"
