"""Clients that wait all the time are served alike, whatever they send."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.engine.request import Request, RequestStatus
from slotwise.interfaces.scheduler import SchedulerPolicy
from slotwise_schedulers.fair import FairScheduler
from slotwise_schedulers.fcfs import FcfsScheduler
from slotwise_schedulers.options import FairOptions

if TYPE_CHECKING:
    from conftest import Simulation

INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
MAX_NUM_SEQS = 3


class BackloggedClient:
    """Sends prompts and output lengths in a circle, and has more requests waiting than can start in one step."""

    def __init__(self, simulation: Simulation, name: str, shapes: list[tuple[int, int]], *, depth: int = MAX_NUM_SEQS + 1) -> None:
        self.simulation, self.name, self.depth = simulation, name, depth
        self.shapes = deque(shapes)
        self.sent: list[Request] = []

    def refill(self) -> None:
        while sum(request.num_computed_tokens == 0 and not request.is_finished for request in self.sent) < self.depth:
            prompt, max_tokens = self.shapes[0]
            self.shapes.rotate(-1)
            self.sent.append(self.simulation.add(prompt, max_tokens=max_tokens, client_id=self.name))

    def served(self) -> float:
        """Weighted tokens: prompts of requests that started, and all that was generated."""
        started = set(self.simulation.admissions)
        prompts = sum(request.num_prompt_tokens for request in self.sent if request.request_id in started)
        return INPUT_WEIGHT * prompts + OUTPUT_WEIGHT * sum(request.num_output_tokens for request in self.sent)


def bound(clients: list[BackloggedClient], max_num_seqs: int = MAX_NUM_SEQS) -> float:
    """U: what one client may be ahead by: a prompt, and the whole output of every running request."""
    shapes = [shape for client in clients for shape in client.shapes]
    return INPUT_WEIGHT * max(prompt for prompt, _ in shapes) + OUTPUT_WEIGHT * max_num_seqs * max(output for _, output in shapes)


def serve(simulation: Simulation, clients: list[BackloggedClient], num_steps: int) -> None:
    for _ in range(num_steps):
        for client in clients:
            client.refill()
        simulation.step()


SHAPES = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 8)), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None)
@given(SHAPES, SHAPES, st.integers(MAX_NUM_SEQS + 1, 12), st.sampled_from([25, 1000]), st.integers(1, 40))
def test_two_backlogged_clients_differ_by_at_most_twice_u_over_any_interval(
    make_simulation: type[Simulation],
    first: list[tuple[int, int]],
    second: list[tuple[int, int]],
    depth: int,
    num_blocks: int,
    interval: int,
) -> None:
    simulation = make_simulation(FairScheduler, max_num_seqs=MAX_NUM_SEQS, budget=16, num_blocks=num_blocks)
    clients = [BackloggedClient(simulation, "a", first, depth=depth), BackloggedClient(simulation, "b", second)]
    history = [(0.0, 0.0)]
    for _ in range(120):
        serve(simulation, clients, 1)
        history.append((clients[0].served(), clients[1].served()))
    limit = bound(clients)
    for (a_before, b_before), (a_after, b_after) in zip(history, history[interval:], strict=False):
        assert abs((a_after - a_before) - (b_after - b_before)) <= 2 * limit
    assert abs(history[-1][0] - history[-1][1]) <= limit, "both started at zero"


@pytest.mark.parametrize(("policy", "is_fair"), [(FairScheduler, True), (FcfsScheduler, False)])
def test_a_client_that_sends_ten_times_as_much_gains_nothing_as_it_does_with_fcfs(
    make_simulation: type[Simulation], policy: type[SchedulerPolicy], is_fair: bool
) -> None:
    simulation = make_simulation(policy, max_num_seqs=MAX_NUM_SEQS)
    clients = [BackloggedClient(simulation, "flood", [(20, 5)], depth=20), BackloggedClient(simulation, "modest", [(10, 5)])]
    serve(simulation, clients, 200)
    flood, modest = (client.served() for client in clients)
    assert modest > 0
    assert (abs(flood - modest) <= bound(clients)) is is_fair


def test_weighted_clients_are_served_in_proportion(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(FairScheduler, FairOptions(client_weights={"paying": 3.0}), max_num_seqs=MAX_NUM_SEQS)
    clients = [BackloggedClient(simulation, "paying", [(8, 3)]), BackloggedClient(simulation, "trial", [(8, 3)])]
    serve(simulation, clients, 300)
    paying, trial = (client.served() for client in clients)
    assert abs(paying / 3 - trial) <= bound(clients)
    assert paying > 2 * trial


def test_a_client_that_was_idle_gets_no_credit_for_it(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(FairScheduler, max_num_seqs=1)
    busy, idle = BackloggedClient(simulation, "busy", [(10, 2)]), BackloggedClient(simulation, "idle", [(10, 2)])
    serve(simulation, [busy], 100)
    before = busy.served()
    serve(simulation, [busy, idle], 100)
    assert idle.served() > 0
    assert abs((busy.served() - before) - idle.served()) <= 2 * bound([busy, idle], 1)


def test_requests_of_one_client_start_in_order_of_arrival_and_clients_alternate(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(FairScheduler, max_num_seqs=1)
    for client_id in ("a", "a", "a", "b", None, None):
        simulation.add(4, max_tokens=1, client_id=client_id)
    simulation.finish()
    assert simulation.admissions == ["r0", "r3", "r4", "r1", "r5", "r2"]
    assert simulation.reasons[1] == "client 'b' was served least"


def test_an_aborted_request_that_never_ran_is_not_charged(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(FairScheduler, max_num_seqs=1)
    simulation.add(4, client_id="z", max_tokens=2)
    simulation.step()
    waiting = [simulation.add(30, client_id="a", max_tokens=1) for _ in range(3)]
    simulation.add(4, client_id="b", max_tokens=1)
    policy = simulation.policy
    assert isinstance(policy, FairScheduler)
    before = policy.counters["a"]
    simulation.abort(waiting[0])
    assert policy.counters["a"] == before
    simulation.finish()


def test_recomputation_after_a_preemption_is_not_charged_again(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(FairScheduler, num_blocks=10)
    requests = [simulation.add(8, max_tokens=max_tokens, client_id="a") for max_tokens in (30, 12, 12)]
    policy = simulation.policy
    assert isinstance(policy, FairScheduler)
    simulation.steps_until(lambda: all(map(simulation.has_all_tokens, requests[1:])) or requests[0].num_output_tokens == 29)
    assert sum(request.num_preemptions for request in requests) > 0
    served = sum(INPUT_WEIGHT * 8 + OUTPUT_WEIGHT * request.num_output_tokens for request in requests if request.num_output_tokens)
    not_yet_known = OUTPUT_WEIGHT * len(simulation.scheduler.running)
    assert served - not_yet_known <= policy.counters["a"] <= served


def test_a_sessions_next_turn_is_charged_for_what_is_new_in_it(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(FairScheduler)
    policy = simulation.policy
    assert isinstance(policy, FairScheduler)
    simulation.add(100, max_tokens=90, client_id="a")
    session = simulation.add(20, max_tokens=5, client_id="a", is_session=True)
    simulation.steps_until(lambda: session.status.is_blocked)
    simulation.step()
    before = policy.counters["a"]
    simulation.scheduler.extend_session(session.request_id, list(range(900, 910)))
    simulation.step()
    assert policy.counters["a"] - before == INPUT_WEIGHT * 10 + OUTPUT_WEIGHT * 1, "ten new tokens, and one of the request beside it"
    simulation.steps_until(lambda: session.status.is_blocked)
    simulation.scheduler.extend_session(session.request_id, None)
    simulation.finish()


def test_a_request_aborted_while_it_was_set_aside_is_no_error(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(FairScheduler)
    simulation.abort(simulation.add(20, client_id="a", status=RequestStatus.WAITING_FOR_GRAMMAR))
    simulation.finish()


def test_victim_is_the_last_admitted_of_the_client_with_most_running_requests(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(FairScheduler)
    running = [simulation.add(4, client_id=name) for name in ("a", "a", "b")]
    victim = simulation.policy.choose_victim(running, running[2])
    assert victim.request is running[1]
    assert victim.reason == "admitted last of client 'a', which has 2 running"


def test_an_id_that_is_used_again_is_charged_again(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(FairScheduler)
    policy = simulation.policy
    assert isinstance(policy, FairScheduler)
    simulation.add(100, max_tokens=90, client_id="keeps a known")
    charges = []
    for _ in range(2):
        request = simulation.add(8, max_tokens=1, client_id="a", request_id="again")
        simulation.step()
        simulation.steps_until(lambda: "again" not in simulation.scheduler.requests)
        assert request.is_finished
        charges.append(policy.counters["a"])
    assert charges[1] - charges[0] == INPUT_WEIGHT * 8 + OUTPUT_WEIGHT * 1
