"""Most urgent first, least urgent out."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.engine.request import Request
from slotwise.interfaces.scheduler import SchedulerSetup, SchedulerState
from slotwise.sampling_params import SamplingParams
from slotwise_schedulers.options import PriorityOptions
from slotwise_schedulers.priority import PriorityScheduler

if TYPE_CHECKING:
    from conftest import Simulation

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


AGING = PriorityScheduler(
    SchedulerSetup(max_num_seqs=8, max_num_scheduled_tokens=64, max_model_len=64, block_size=4, options=PriorityOptions(aging_seconds=10.0))
)


def test_aging_gains_one_level_per_interval() -> None:
    late_but_urgent, early = make_request(1, 0, 19.0), make_request(0, 2, 0.0)
    assert AGING.order_key(late_but_urgent, 20.0) < AGING.order_key(early, 20.0)
    later_still = make_request(2, 0, 21.0)
    assert AGING.order_key(early, 21.0) < AGING.order_key(later_still, 21.0)
    assert AGING.order_reason(early, 25.0) == "most urgent: priority 2, 2.5 gained by waiting"
    assert POLICY.order_reason(early, 25.0) == "most urgent: priority 2"


@given(st.integers(0, 20), st.integers(0, 20), st.floats(0, 1e6), st.floats(0, 1e3))
def test_aging_bounds_starvation_nobody_who_comes_later_than_the_difference_in_levels_goes_first(
    priority: int, other_priority: int, arrival_time: float, later: float
) -> None:
    waiting = make_request(0, priority, arrival_time)
    newcomer = make_request(1, other_priority, arrival_time + 10.0 * max(priority - other_priority, 0) + 0.001 + later)
    assert AGING.order_key(waiting, 0.0) < AGING.order_key(newcomer, 0.0)


def test_without_aging_an_endless_stream_of_urgent_requests_starves_the_rest_and_with_aging_it_does_not(
    make_simulation: type[Simulation],
) -> None:
    def is_served(options: PriorityOptions | None) -> bool:
        simulation = make_simulation(PriorityScheduler, options, max_num_seqs=1)
        patient = simulation.add(4, max_tokens=2, priority=3)
        for _ in range(100):
            simulation.add(4, max_tokens=2, priority=0)
            simulation.step()
        return simulation.has_all_tokens(patient)

    assert not is_served(None)
    assert is_served(PriorityOptions(aging_seconds=10.0))


def test_an_urgent_request_takes_a_seat_in_the_step_after_it_arrived(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(PriorityScheduler, PriorityOptions(displace=True), max_num_seqs=2)
    requests = [simulation.add(6, max_tokens=9, priority=5), simulation.add(6, max_tokens=9, priority=7)]
    simulation.step()
    requests.append(simulation.add(6, max_tokens=3, priority=1))
    scheduled = simulation.step()
    assert scheduled.preempted_request_ids == {"r1"}
    assert scheduled.num_scheduled_tokens == {"r0": 1, "r2": 6}
    assert scheduled.reasons["r1"] == "priority 7 gives way to 1"
    simulation.finish()
    assert simulation.admissions == ["r0", "r1", "r2", "r1"], "one displacement, no ping-pong"
    assert all(map(simulation.has_all_tokens, requests))


def test_an_urgent_request_takes_blocks_where_seats_are_free(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(PriorityScheduler, PriorityOptions(displace=True), num_blocks=10)
    requests = [simulation.add(16, max_tokens=8, priority=5), simulation.add(16, max_tokens=8, priority=6)]
    simulation.step()
    requests.append(simulation.add(20, max_tokens=2, priority=0))
    scheduled = simulation.step()
    assert scheduled.preempted_request_ids == {"r1"}
    assert scheduled.num_scheduled_tokens["r2"] == 20
    simulation.finish()
    assert all(map(simulation.has_all_tokens, requests))


def test_nobody_is_displaced_by_an_equal_or_in_vain(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(PriorityScheduler, PriorityOptions(displace=True), num_blocks=10, max_num_seqs=3)
    simulation.add(28, max_tokens=8, priority=0)
    simulation.add(4, max_tokens=8, priority=5)
    simulation.step()
    simulation.add(30, max_tokens=2, priority=1)  # r1's blocks would not suffice, and r0 is more urgent
    simulation.add(4, max_tokens=2, priority=5)
    assert not simulation.step().preempted_request_ids
    simulation.finish()


@given(
    st.lists(st.tuples(st.integers(-2, 2), st.sampled_from([0.0, 15.0, 40.0])), min_size=2, max_size=6),
    st.sampled_from([None, 10.0]),
    st.integers(1, 60),
)
def test_a_displaced_request_is_always_less_urgent_and_behind_in_the_order(
    make_setup: Callable[..., SchedulerSetup],
    make_state: Callable[..., SchedulerState],
    specs: list[tuple[int, float]],
    aging_seconds: float | None,
    num_free_blocks: int,
) -> None:
    policy = PriorityScheduler(make_setup(PriorityOptions(displace=True, aging_seconds=aging_seconds)))
    candidate, *running = [make_request(index, priority, arrival_time) for index, (priority, arrival_time) in enumerate(specs)]
    victim = policy.displace(candidate, running, make_state(num_free_blocks=num_free_blocks))
    behind = [r for r in running if r.priority > candidate.priority and policy.order_key(r, 0.0) > policy.order_key(candidate, 0.0)]
    assert (victim is None) == (not behind)
    assert victim is None or victim.request is max(behind, key=lambda request: policy.order_key(request, 0.0))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 8), st.integers(0, 3), st.integers(0, 12)), min_size=2, max_size=12),
    st.integers(8, 20),
    st.integers(1, 3),
    st.sampled_from([None, 4.0]),
)
def test_displacement_ends_and_loses_no_token(
    make_simulation: type[Simulation],
    shapes: list[tuple[int, int, int, int]],
    num_blocks: int,
    max_num_seqs: int,
    aging_seconds: float | None,
) -> None:
    options = PriorityOptions(displace=True, aging_seconds=aging_seconds)
    simulation = make_simulation(PriorityScheduler, options, num_blocks=num_blocks, max_num_seqs=max_num_seqs, budget=16)
    requests = []
    for prompt, max_tokens, priority, at in sorted(shapes, key=lambda shape: shape[3]):
        while simulation.now < at:
            simulation.step()
        requests.append(simulation.add(prompt, max_tokens=max_tokens, priority=priority))
    simulation.finish()
    assert all(map(simulation.has_all_tokens, requests))
