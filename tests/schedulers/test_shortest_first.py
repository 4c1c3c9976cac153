"""Least remaining work first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from slotwise.engine.request import Request
from slotwise.interfaces.scheduler import SchedulerSetup
from slotwise_schedulers.options import ShortestFirstOptions
from slotwise_schedulers.shortest_first import ShortestFirstScheduler

if TYPE_CHECKING:
    from conftest import Simulation

MakeRequest = Callable[..., Request]
MakeSetup = Callable[..., SchedulerSetup]


def test_prompt_and_expected_output_count(make_request: MakeRequest, make_setup: MakeSetup) -> None:
    policy = ShortestFirstScheduler(make_setup())
    long_output, short = make_request(0, prompt=2, max_tokens=30), make_request(1, prompt=20, max_tokens=4)
    assert policy.order_key(short, 0.0) < policy.order_key(long_output, 0.0)
    prompts_only = ShortestFirstScheduler(make_setup(ShortestFirstOptions(output_weight=0.0)))
    assert prompts_only.order_key(long_output, 0.0) < prompts_only.order_key(short, 0.0)


def test_what_was_computed_and_generated_is_no_work(make_request: MakeRequest, make_setup: MakeSetup) -> None:
    policy = ShortestFirstScheduler(make_setup())
    nearly_done = make_request(0, prompt=50, max_tokens=10)
    nearly_done.all_token_ids += [1] * 8
    nearly_done.num_computed_tokens = 57
    fresh = make_request(1, prompt=2, max_tokens=4)
    assert policy.order_key(nearly_done, 0.0)[0] == 1 + 2
    assert policy.order_key(nearly_done, 0.0) < policy.order_key(fresh, 0.0)


def test_equal_work_goes_by_arrival(make_request: MakeRequest, make_setup: MakeSetup) -> None:
    policy = ShortestFirstScheduler(make_setup())
    assert policy.order_key(make_request(0), 0.0) < policy.order_key(make_request(1), 0.0)


def test_victim_has_most_work_left_and_reasons_name_it(make_request: MakeRequest, make_setup: MakeSetup) -> None:
    policy = ShortestFirstScheduler(make_setup())
    running = [make_request(0, prompt=40, max_tokens=10), make_request(1, prompt=4, max_tokens=4)]
    victim = policy.choose_victim(running, running[1])
    assert victim.request is running[0]
    assert victim.reason == "most work left: 50 tokens"
    assert policy.order_reason(running[1], 0.0) == "least work: 8 tokens"
    assert policy.order_reason(running[1], 0.5) == "least work: 8 tokens, 50 forgiven"


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 500), st.floats(0, 1e6), st.floats(0, 1e3))
def test_aging_bounds_starvation_nobody_who_comes_later_than_the_work_takes_to_be_forgiven_goes_first(
    make_request: MakeRequest, make_setup: MakeSetup, prompt: int, max_tokens: int, other_prompt: int, arrival_time: float, later: float
) -> None:
    policy = ShortestFirstScheduler(make_setup(ShortestFirstOptions(aging_tokens_per_second=20.0)))
    waiting = make_request(0, prompt=prompt, max_tokens=max_tokens, arrival_time=arrival_time)
    forgiven_at = arrival_time + (prompt + max_tokens) / 20.0
    newcomer = make_request(1, prompt=other_prompt, max_tokens=1, arrival_time=forgiven_at + later)
    assert policy.order_key(waiting, 0.0) < policy.order_key(newcomer, 0.0)


def test_a_long_request_starves_behind_short_ones_only_without_aging(make_simulation: type[Simulation]) -> None:
    def is_served(aging_tokens_per_second: float | None) -> bool:
        options = ShortestFirstOptions(aging_tokens_per_second=aging_tokens_per_second)
        simulation = make_simulation(ShortestFirstScheduler, options, max_num_seqs=1)
        long = simulation.add(60, max_tokens=2)
        for _ in range(100):
            simulation.add(4, max_tokens=2)
            simulation.step()
        return simulation.has_all_tokens(long)

    assert not is_served(None)
    assert is_served(2.0)


def test_short_requests_overtake_long_ones_that_wait(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(ShortestFirstScheduler, max_num_seqs=1)
    for prompt in (30, 20, 10):
        simulation.add(prompt, max_tokens=2)
    simulation.finish()
    assert simulation.admissions == ["r2", "r1", "r0"]
