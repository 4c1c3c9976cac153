"""Cases of the `scheduler` slot that ask a policy directly."""

from __future__ import annotations

from itertools import combinations

from slotwise.engine.request import Request
from slotwise.interfaces.scheduler import SchedulerPolicy, SchedulerState
from slotwise.sampling_params import SamplingParams
from slotwise.testing.policy_kit import SETUP, PolicyKit
from slotwise.testing.policy_observer import PolicyObserver, check_order
from slotwise.testing.verdicts import NotClaimedError, require


class PolicyAnswerCases(PolicyKit):
    """One kind of answer each."""

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
        self.require_override("choose_chunk")
        policy, requests = self._ready_policy()
        for num_tokens in (2, 3, 5, 16):
            for num_running in (0, 1, 4):
                for num_waiting in (0, 1, 50):
                    for request in requests[:4]:
                        policy.choose_chunk(request, num_tokens, _state(num_running=num_running, num_waiting=num_waiting))

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
