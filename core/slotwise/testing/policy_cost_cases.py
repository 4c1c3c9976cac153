"""Cases of the `scheduler` slot about what a policy costs: time per step, and memory of who is gone."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Final

from slotwise.engine.request import Request
from slotwise.testing.policy_kit import SETUP, PolicyKit, add_crowd
from slotwise.testing.policy_simulation import PolicySimulation, Scale
from slotwise.testing.verdicts import NotClaimedError, require

SMALL_QUEUE: Final = 200
LARGE_QUEUE: Final = 1600


class TrackedRequest(Request):
    """A request that can be weakly referenced."""

    __slots__ = ("__weakref__",)


class PolicyCostCases(PolicyKit):
    """One cost each."""

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
        simulation = self.simulation(Scale(num_usable_blocks=12), request_class=TrackedRequest)
        add_crowd(simulation)
        left = [weakref.ref(request) for request in simulation.scheduler.requests.values()]
        simulation.step()
        for request_id in sorted(simulation.scheduler.requests)[::3]:
            simulation.abort(request_id)
        simulation.drain()
        gc.collect()
        kept = [request.request_id for reference in left if (request := reference()) is not None]
        require(not kept, f"{len(kept)} requests that left are still held, among them {kept[:5]}")

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
