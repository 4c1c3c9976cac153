"""Earliest deadline first, most slack out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.engine.request import Request
from slotwise.interfaces.scheduler import SchedulerSetup
from slotwise_schedulers.deadline import DeadlineScheduler
from slotwise_schedulers.options import DeadlineOptions

if TYPE_CHECKING:
    from conftest import Simulation

MakeRequest = Callable[..., Request]
MakeSetup = Callable[..., SchedulerSetup]
OPTIONS = DeadlineOptions(ttft_ms=500, itl_ms=50, ttft_ms_by_priority={1: 5000}, itl_ms_by_priority={1: 200})


def with_outputs(request: Request, num_output_tokens: int) -> Request:
    request.all_token_ids += [1] * num_output_tokens
    return request


def test_tokens_are_due_by_the_targets_of_the_priority(make_request: MakeRequest, make_setup: MakeSetup) -> None:
    policy = DeadlineScheduler(make_setup(OPTIONS))
    assert policy.due(make_request(0, arrival_time=10.0)) == pytest.approx(10.5)
    assert policy.due(with_outputs(make_request(0, arrival_time=10.0), 4)) == pytest.approx(10.7)
    assert policy.due(with_outputs(make_request(0, arrival_time=10.0, priority=1), 4)) == pytest.approx(15.8)


def test_the_earliest_deadline_goes_first_even_if_it_arrived_later(make_request: MakeRequest, make_setup: MakeSetup) -> None:
    policy = DeadlineScheduler(make_setup(OPTIONS))
    relaxed, strict = make_request(0, arrival_time=0.0, priority=1), make_request(1, arrival_time=4.0)
    assert policy.order_key(strict, 4.0) < policy.order_key(relaxed, 4.0)
    late_comer = make_request(2, arrival_time=4.6)
    assert policy.order_key(relaxed, 4.6) < policy.order_key(late_comer, 4.6)


def test_reasons_say_when_the_token_is_due(make_request: MakeRequest, make_setup: MakeSetup) -> None:
    policy = DeadlineScheduler(make_setup(OPTIONS))
    request = make_request(0, arrival_time=1.0)
    assert policy.order_reason(request, 1.25) == "first token due in 250 ms"
    assert policy.order_reason(with_outputs(request, 2), 2.0) == "next token late by 400 ms"


def test_victim_has_most_slack_unless_it_was_preempted_before(make_request: MakeRequest, make_setup: MakeSetup) -> None:
    policy = DeadlineScheduler(make_setup(OPTIONS))
    ahead, behind = with_outputs(make_request(0), 9), with_outputs(make_request(1), 2)
    victim = policy.choose_victim([ahead, behind], behind)
    assert victim.request is ahead
    assert victim.reason == "most slack: 9 tokens made, 0 times preempted"
    ahead.num_preemptions = 1
    assert policy.choose_victim([ahead, behind], behind).request is behind


@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 50), st.floats(0, 1e6), st.floats(0.001, 1e3))
def test_nobody_who_comes_after_the_deadline_of_one_that_waits_goes_before_it(
    make_request: MakeRequest, make_setup: MakeSetup, priority: int, other: int, num_output_tokens: int, arrival_time: float, later: float
) -> None:
    policy = DeadlineScheduler(make_setup(OPTIONS))
    waiting = with_outputs(make_request(0, arrival_time=arrival_time, priority=priority), num_output_tokens)
    newcomer = make_request(1, arrival_time=policy.due(waiting) + later, priority=other)
    assert policy.order_key(waiting, 0.0) < policy.order_key(newcomer, 0.0)


def test_a_relaxed_request_is_served_in_the_midst_of_an_endless_stream_of_strict_ones(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(DeadlineScheduler, DeadlineOptions(ttft_ms_by_priority={1: 20_000}), max_num_seqs=1)
    relaxed = simulation.add(4, max_tokens=2, priority=1)
    for _ in range(60):
        simulation.add(4, max_tokens=2, priority=0)
        simulation.step()
    assert simulation.has_all_tokens(relaxed)


def test_two_that_are_level_do_not_take_turns_in_a_pool_for_one(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(DeadlineScheduler, DeadlineOptions(ttft_ms=1000, itl_ms=100), num_blocks=12, budget=4)
    requests = [simulation.add(8, max_tokens=36), simulation.add(8, max_tokens=36)]
    simulation.finish()
    assert all(map(simulation.has_all_tokens, requests))
    assert sum(request.num_preemptions for request in requests) <= 6
