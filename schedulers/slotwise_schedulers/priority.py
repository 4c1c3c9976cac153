"""`priority`: the most urgent request starts first, the least urgent one gives way.

What this file does not know: which blocks a request holds; the core counts them.
"""

from __future__ import annotations

from collections.abc import Sequence

from slotwise.interfaces.scheduler import SchedulableRequest, SchedulerSetup, SchedulerState, Victim
from slotwise_schedulers.budget_shares import BudgetSharingScheduler
from slotwise_schedulers.options import PriorityOptions


class PriorityScheduler(BudgetSharingScheduler):
    """Smaller `priority` first, earlier arrival among equals; it orders admission and preemption.

    With `aging_seconds` = a, the urgency at time t is `priority - (t - arrival_time) / a`. As t is the same for all, the order is that of
    `priority + arrival_time / a`, which never changes. With `displace`, a waiting request takes seat and blocks of running ones that have
    a larger priority number and stand behind it in the order: two requests cannot displace each other.
    """

    def __init__(self, setup: SchedulerSetup) -> None:
        self.options = PriorityOptions.model_validate(setup.options or {})
        super().__init__(setup, self.options)
        self._levels_per_second = 0.0 if self.options.aging_seconds is None else 1.0 / self.options.aging_seconds

    def order_key(self, request: SchedulableRequest, now: float) -> tuple[float, float, int]:
        return (request.priority + request.arrival_time * self._levels_per_second, request.arrival_time, request.arrival_index)

    def order_reason(self, request: SchedulableRequest, now: float) -> str:
        gained = (now - request.arrival_time) * self._levels_per_second
        return f"most urgent: priority {request.priority}" + (f", {gained:.1f} gained by waiting" if gained > 0 else "")

    def choose_victim(self, running: Sequence[SchedulableRequest], blocked: SchedulableRequest) -> Victim:
        """The least urgent, the latest among equals, which may be `blocked` itself: it must not push out a more urgent one."""
        victim = max(running, key=lambda request: self.order_key(request, 0.0))
        return Victim(request=victim, reason=f"least urgent: priority {victim.priority}")

    def displace(self, candidate: SchedulableRequest, running: Sequence[SchedulableRequest], state: SchedulerState) -> Victim | None:
        """The least urgent of those `candidate` may displace; None if there is none, or if all of them together would not make room."""
        if not self.options.displace:
            return None
        key = self.order_key(candidate, state.now)
        behind = [request for request in running if request.priority > candidate.priority and self.order_key(request, state.now) > key]
        if not behind or not self._would_fit(candidate, behind, state):
            return None
        victim = max(behind, key=lambda request: self.order_key(request, state.now))
        return Victim(request=victim, reason=f"priority {victim.priority} gives way to {candidate.priority}")

    def _would_fit(self, candidate: SchedulableRequest, behind: Sequence[SchedulableRequest], state: SchedulerState) -> bool:
        """Whether the first chunk of `candidate` could find blocks after all of `behind` left; shared blocks make this an upper bound."""
        block_size = self.setup.block_size
        cached = self.setup.cached_prefix_len(candidate) if self.setup.cached_prefix_len else 0
        needed = -(-min(candidate.num_tokens - cached, state.token_budget) // block_size)
        freed = sum(-(-request.num_computed_tokens // block_size) for request in behind)
        return needed <= state.num_free_blocks + freed
