"""`SchedulerPolicyConformance`: the cases of the `scheduler` slot.

Some ask the policy directly, most run it under the core's scheduler, where every answer is checked. Whatever a policy leaves to the base
class it has not claimed. What this file does not know: which order is a good one.
"""

from __future__ import annotations

import dataclasses
import gc
import weakref
from itertools import combinations
from typing import Any, ClassVar, Final

from slotwise.engine.request import Request
from slotwise.interfaces.scheduler import SchedulerPolicy, SchedulerSetup, SchedulerState
from slotwise.sampling_params import SamplingParams
from slotwise.testing.conformance import ComponentConformance
from slotwise.testing.policy_machine import PolicyMachine
from slotwise.testing.policy_observer import PolicyObserver, check_order
from slotwise.testing.policy_simulation import PolicySimulation, Scale
from slotwise.testing.verdicts import NotClaimedError, require

NUM_STEPS: Final = 12
SMALL_QUEUE: Final = 200
LARGE_QUEUE: Final = 1600
SETUP: Final = SchedulerSetup(max_num_seqs=4, max_num_scheduled_tokens=16, max_model_len=64, block_size=4)


class TrackedRequest(Request):
    """A request that can be weakly referenced."""

    __slots__ = ("__weakref__",)


class SchedulerPolicyConformance(ComponentConformance):
    """Subclass it in a test module as `class TestMyPolicy(SchedulerPolicyConformance): component = "my_policy"`."""

    slot: ClassVar[str] = "scheduler"
    max_overtakes: ClassVar[int | None] = None
    """The policy's promise against starvation, if it makes one: at most this many requests start before one that arrived earlier."""

    def make_policy(self, setup: SchedulerSetup) -> SchedulerPolicy:
        """A policy to examine; override it where the class alone would not do."""
        implementation, options = self.implementation()
        policy: SchedulerPolicy = implementation(setup if options is None else dataclasses.replace(setup, options=options))
        return policy

    # -- one question each ---------------------------------------------------------------------------------------------

    def test_order_is_total(self) -> None:
        """Of any two requests, equal in all but name and arrival, `order_key` puts exactly one first, and always the same."""
        policy, requests = self.make_policy(SETUP), _requests()
        PolicyObserver(policy)
        if policy.make_queue() is not None:
            raise NotClaimedError("orders by a queue of its own")
        keys = {request.request_id: policy.order_key(request, 10.0) for request in requests}
        for (first_id, first), (second_id, second) in combinations(keys.items(), 2):
            check_order(first_id, first, second_id, second)

    def test_own_queue_keeps_everybody(self) -> None:
        """A queue of the policy's own gives out each waiting request once, its head stays until it is removed."""
        policy = self.make_policy(SETUP)
        PolicyObserver(policy)
        queue = policy.make_queue()
        if queue is None:
            raise NotClaimedError("orders by order_key alone")
        requests = _requests()
        for request in requests:
            queue.add(request, 10.0)
        for request in requests[::3]:
            queue.remove(request)
        for _ in range(len(queue)):
            queue.remove(queue.peek(11.0))
        require(len(queue) == 0, f"{len(queue)} requests wait in a queue that was emptied")

    def test_victim_is_one_of_the_running(self) -> None:
        """`choose_victim` answers with one of those that run, the blocked one included, and says why."""
        policy, requests = self._ready_policy()
        for num_running in range(1, len(requests) + 1):
            running = requests[:num_running]
            for blocked in running:
                policy.choose_victim(running, blocked)

    def test_chunk_is_within_bounds(self) -> None:
        """`choose_chunk` answers 1 .. the number asked about, whatever the state."""
        self._require_override("choose_chunk")
        policy, requests = self._ready_policy()
        for num_tokens in (2, 3, 5, 16):
            for num_running in (0, 1, 4):
                for num_waiting in (0, 1, 50):
                    for request in requests[:4]:
                        policy.choose_chunk(request, num_tokens, _state(num_running=num_running, num_waiting=num_waiting))

    def test_each_request_alone_is_served(self) -> None:
        """With nobody else there, a request of any size, priority and client starts and ends."""
        simulation = self._simulation(Scale())
        for prompt_len in (1, 3, 4, 16, 17, 47):
            for priority, client_id in ((0, None), (-3, "a"), (7, "b")):
                simulation.add(list(range(prompt_len)), priority=priority, client_id=client_id)
                simulation.drain()

    def test_everybody_is_served(self) -> None:
        """A crowd of all sizes, priorities and clients is served, each request to its last token."""
        simulation = self._simulation(Scale(num_usable_blocks=24))
        self._add_crowd(simulation)
        simulation.drain()

    def test_preemption_ends(self) -> None:
        """Where two requests cannot run to their end side by side, both do so in the end."""
        for block_size in (1, 4):
            simulation = self._simulation(Scale(num_usable_blocks=40 // block_size, block_size=block_size))
            for number in range(4):
                simulation.add([number] * 12, max_tokens=20, priority=number % 2, client_id="ab"[number % 2])
            simulation.drain()

    def test_abort_is_legal_at_any_time(self) -> None:
        """Waiting, running and preempted requests may go away, and be told to twice."""
        for num_steps in range(12):
            simulation = self._simulation(Scale(num_usable_blocks=10, max_num_seqs=3))
            for number in range(5):
                simulation.add([number] * 10, max_tokens=10, priority=number % 3, client_id="ab"[number % 2])
            for _ in range(num_steps):
                simulation.step()
            for request_id in sorted(simulation.scheduler.requests)[::2] * 2:
                simulation.abort(request_id)
            simulation.drain()

    def test_displacement_is_for_the_more_urgent_only(self) -> None:
        """`displace` takes a seat only from a request that `order_key` puts behind the candidate."""
        self._require_override("displace")
        simulation = self._simulation(Scale(max_num_seqs=2))
        for priority in (5, 5, 0, 0, 9, -1):
            simulation.add([1] * 8, max_tokens=12, priority=priority)
            simulation.step()
        simulation.drain()
        if simulation.observer is not None and simulation.observer.num_displacements == 0:
            raise NotClaimedError("displaced nobody, with these options")

    def test_same_traffic_is_scheduled_the_same(self) -> None:
        """The order depends on requests, clock and what runs, on nothing else."""
        runs = []
        for _ in range(2):
            simulation = self._simulation(Scale(num_usable_blocks=12))
            self._add_crowd(simulation)
            runs.append([dict(simulation.step().num_scheduled_tokens) for _ in range(60)])
        for number, (first, second) in enumerate(zip(*runs, strict=True)):
            require(first == second, f"step {number} of the same traffic was scheduled as {first} and then as {second}")

    def test_nobody_waits_longer_than_promised(self) -> None:
        """At most `max_overtakes` requests start before one that arrived earlier, however many arrive."""
        if self.max_overtakes is None:
            raise NotClaimedError("makes no promise (max_overtakes) against starvation")
        for prompt_len, priority in ((16, 0), (16, 9), (1, 9)):
            simulation = self._simulation(Scale(max_num_seqs=1))
            simulation.add([5], max_tokens=2, client_id="b")
            simulation.step()
            patient = simulation.add(list(range(100, 100 + prompt_len)), priority=priority, client_id="a")
            self._feed_until_started(simulation, patient, self.max_overtakes)
            simulation.drain()

    def test_cost_does_not_grow_with_who_waits(self) -> None:
        """A step reads no more of the waiting requests, and asks for no more keys, when eight times as many wait."""
        if self.make_policy(SETUP).dynamic_order:
            raise NotClaimedError("declares dynamic_order: the whole queue is keyed again each step")
        few, many = self._num_reads(SMALL_QUEUE), self._num_reads(LARGE_QUEUE)
        require(
            many <= 2 * few + SMALL_QUEUE,
            f"20 steps read {few} fields of requests while {SMALL_QUEUE} wait and {many} while {LARGE_QUEUE} do",
        )

    def test_forgets_who_left(self) -> None:
        """The policy keeps no request that ended or was aborted."""
        simulation = self._simulation(Scale(num_usable_blocks=12), request_class=TrackedRequest)
        self._add_crowd(simulation)
        left = [weakref.ref(request) for request in simulation.scheduler.requests.values()]
        simulation.step()
        for request_id in sorted(simulation.scheduler.requests)[::3]:
            simulation.abort(request_id)
        simulation.drain()
        gc.collect()
        kept = [request.request_id for reference in left if (request := reference()) is not None]
        require(not kept, f"{len(kept)} requests that left are still held, among them {kept[:5]}")

    # -- everything at once --------------------------------------------------------------------------------------------

    def test_random_traffic(self) -> None:
        """Random arrivals, limits and aborts, blocks enough: everybody is served."""
        self.run_machine(lambda: PolicyMachine(self.make_policy, (40, 80)), num_steps=NUM_STEPS)

    def test_random_traffic_in_a_small_pool(self) -> None:
        """The same where requests must be preempted."""
        self.run_machine(lambda: PolicyMachine(self.make_policy, (4, 16)), num_steps=NUM_STEPS)

    # -- what the cases are made of ------------------------------------------------------------------------------------

    def _simulation(self, scale: Scale, *, request_class: type[Request] = Request) -> PolicySimulation:
        return PolicySimulation(self.make_policy, scale, request_class=request_class)

    def _require_override(self, method: str) -> None:
        policy = type(self.make_policy(SETUP))
        if getattr(policy, method) is getattr(SchedulerPolicy, method):
            raise NotClaimedError(f"leaves {method} to the base class")

    def _ready_policy(self) -> tuple[SchedulerPolicy, list[Request]]:
        """A policy that knows some requests, as it would of running ones: they waited and left the queue."""
        policy, requests = self.make_policy(SETUP), _requests()
        PolicyObserver(policy)
        queue = policy.make_queue()
        for request in requests:
            if queue is None:
                policy.order_key(request, 1.0)
            else:
                queue.add(request, 1.0)
        for request in requests if queue is not None else ():
            queue.remove(request)  # type: ignore[union-attr]
        return policy, requests

    @staticmethod
    def _add_crowd(simulation: PolicySimulation) -> None:
        for number in range(24):
            prompt = [number % 2] * (1 + 7 * number % 23)
            simulation.add(prompt, max_tokens=1 + number % 5, priority=number % 3, client_id=("a", "b", None)[number % 3])

    @staticmethod
    def _feed_until_started(simulation: PolicySimulation, patient: str, max_overtakes: int) -> None:
        """Keep later requests of every tempting kind waiting until `patient` has started."""
        before = len(simulation.started)
        while patient not in simulation.started:
            while simulation.scheduler.num_waiting < 6:
                number = simulation.scheduler.num_waiting
                simulation.add([5] * (1 + 4 * (number % 2)), max_tokens=1, priority=number % 2 - 1, client_id="bc"[number % 2])
            simulation.step()
            num_overtakes = len([name for name in simulation.started[before:] if name != patient])
            require(num_overtakes <= max_overtakes, f"{num_overtakes} later requests started before {patient}, promised: {max_overtakes}")

    # An observer reads a lot itself.
    def _num_reads(self, num_waiting: int) -> int:
        """Fields of requests read in 20 steps while that many wait, by whomever."""
        counter = _ReadCounter()
        simulation = PolicySimulation(self.make_policy, Scale(), request_class=counter.request_class(), is_observed=False)
        for number in range(num_waiting):
            simulation.add([number % 7] * 3, max_tokens=2, priority=number % 3, client_id=f"client{number % 5}")
        simulation.step()
        counter.num_reads = 0
        for _ in range(20):
            simulation.step()
        return counter.num_reads


class _ReadCounter:
    def __init__(self) -> None:
        self.num_reads = 0

    def request_class(self) -> type[Request]:
        counter = self

        class CountedRequest(Request):
            """A request that counts how often it is looked at."""

            __slots__ = ()

            def __getattribute__(self, name: str) -> Any:
                counter.num_reads += 1
                return super().__getattribute__(name)

        return CountedRequest


def _requests() -> list[Request]:
    """Requests that tie in as much as they can."""
    made = []
    for index in range(12):
        request = Request(
            request_id=f"r{index}",
            prompt_token_ids=[1] * (3 if index % 2 else 9),
            sampling_params=SamplingParams(max_tokens=4 + index % 2),
            arrival_time=float(index // 6),
            arrival_index=index,
            priority=index % 2,
            client_id="ab"[index % 2],
        )
        made.append(request)
    return made


def _state(*, num_running: int, num_waiting: int) -> SchedulerState:
    return SchedulerState(
        now=10.0, token_budget=16, num_running=num_running, num_waiting=num_waiting, num_free_blocks=20, num_usable_blocks=30
    )
