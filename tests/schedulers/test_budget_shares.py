"""A prompt that is computed in chunks starves neither who runs nor who waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.interfaces.scheduler import SchedulerPolicy
from slotwise_schedulers.deadline import DeadlineScheduler
from slotwise_schedulers.fair import FairScheduler
from slotwise_schedulers.fcfs import FcfsScheduler
from slotwise_schedulers.longest_prefix import LongestPrefixScheduler
from slotwise_schedulers.options import FcfsOptions, PriorityOptions
from slotwise_schedulers.priority import PriorityScheduler
from slotwise_schedulers.shortest_first import ShortestFirstScheduler

if TYPE_CHECKING:
    from conftest import Simulation

SHARING: list[tuple[type[SchedulerPolicy], FcfsOptions | None]] = [
    (FcfsScheduler, FcfsOptions(share_budget=True)),
    (PriorityScheduler, None),
    (ShortestFirstScheduler, None),
    (LongestPrefixScheduler, None),
    (FairScheduler, None),
    (DeadlineScheduler, None),
]
NAMES = [policy.__name__ for policy, _ in SHARING]


def steps_to_first_token_behind_a_hog(simulation: Simulation, hog_len: int) -> int:
    simulation.add(hog_len, max_tokens=1)
    simulation.step()
    request = simulation.add(4, max_tokens=2)
    return simulation.steps_until(lambda: request.num_output_tokens > 0)


@pytest.mark.parametrize(("policy", "options"), SHARING, ids=NAMES)
@pytest.mark.parametrize("hog_len", [400, 4000])
def test_known_bug_17_a_short_request_behind_a_hog_gets_its_token_in_one_step(
    make_simulation: type[Simulation], policy: type[SchedulerPolicy], options: FcfsOptions | None, hog_len: int
) -> None:
    simulation = make_simulation(policy, options, budget=8, num_blocks=2000, max_model_len=5000)
    assert steps_to_first_token_behind_a_hog(simulation, hog_len) == 1
    assert simulation.step().num_scheduled_tokens["r1"] == 1, "nor does the hog keep it from its second token"


def test_known_bug_17_strict_fcfs_waits_for_the_hogs_last_chunk_as_documented(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(FcfsScheduler, budget=8, num_blocks=2000, max_model_len=5000)
    first_step_of_the_hog = 1
    assert first_step_of_the_hog + steps_to_first_token_behind_a_hog(simulation, 4000) == -(-4000 // 8) + 1


def test_max_chunk_tokens_limits_each_prompt_while_others_are_here_but_not_alone(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(FcfsScheduler, FcfsOptions(max_chunk_tokens=3), budget=8)
    simulation.add(40, max_tokens=1)
    assert simulation.step().num_scheduled_tokens == {"r0": 8}
    simulation.add(40, max_tokens=1)
    assert simulation.step().num_scheduled_tokens == {"r0": 3, "r1": 3}
    assert simulation.reasons[-2:] == [
        "at most 3 prompt tokens while others are here",
        "at most 3 prompt tokens while others are here; arrived first",
    ]


def test_hogs_share_equally_what_generating_requests_leave(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(PriorityScheduler, budget=20, max_num_seqs=4)
    for prompt in (2, 2, 300, 300):
        simulation.add(prompt, max_tokens=50)
        simulation.step()
    for _ in range(3):
        scheduled = simulation.step().num_scheduled_tokens
    assert scheduled == {"r0": 1, "r1": 1, "r2": 9, "r3": 9}
    simulation.add(5)
    assert simulation.step().num_scheduled_tokens == scheduled, "without a free seat nothing is kept for who waits"


def test_a_part_is_kept_for_who_waits_while_a_seat_is_free(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(PriorityScheduler, budget=20, max_num_seqs=4)
    simulation.add(300)
    simulation.step()
    simulation.add(300)
    assert simulation.step().num_scheduled_tokens == {"r0": 10, "r1": 10}
    simulation.add(300)
    assert simulation.step().num_scheduled_tokens == {"r0": 6, "r1": 6, "r2": 8}


def test_a_lone_prompt_uses_the_whole_budget(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(PriorityScheduler, budget=20)
    simulation.add(60, max_tokens=1)
    assert [simulation.step().total_num_scheduled_tokens for _ in range(3)] == [20, 20, 20]


def test_a_prompt_that_left_no_longer_counts(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(PriorityScheduler, budget=20)
    simulation.add(300)
    hog = simulation.add(300)
    simulation.step()
    simulation.step()
    assert simulation.step().num_scheduled_tokens == {"r0": 10, "r1": 10}
    simulation.abort(hog)
    assert simulation.step().num_scheduled_tokens == {"r0": 20}


@settings(max_examples=60, deadline=None)
@given(
    case=st.sampled_from(SHARING),
    shapes=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=14),
    budget=st.integers(6, 24),
    cap=st.none() | st.integers(1, 9),
)
def test_every_running_request_gets_a_token_in_every_step_and_the_head_of_the_queue_a_free_seat(
    make_simulation: type[Simulation],
    case: tuple[type[SchedulerPolicy], Any],
    shapes: list[tuple[int, int, int]],
    budget: int,
    cap: int | None,
) -> None:
    policy, options = case
    if policy is PriorityScheduler:
        options = PriorityOptions(max_chunk_tokens=cap)
    simulation = make_simulation(policy, options, budget=budget, max_num_seqs=6)
    pending = sorted(shapes, key=lambda shape: shape[2])
    for step in range(600):
        while pending and pending[0][2] <= step:
            prompt, max_tokens, _ = pending.pop(0)
            simulation.add(prompt, max_tokens=max_tokens, priority=prompt % 3, client_id=str(prompt % 2))
        running = {request.request_id for request in simulation.scheduler.running}
        is_wanted = simulation.scheduler.num_waiting > 0 and len(running) < 6
        scheduled = simulation.step()
        assert running <= set(scheduled.num_scheduled_tokens)
        assert not is_wanted or scheduled.scheduled_new_requests
        if not pending and not simulation.scheduler.requests:
            return
    raise AssertionError("not finished")
