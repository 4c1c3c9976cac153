"""`deadline`: the request whose next token is due first starts first, the one with the most slack gives way.

Token k of a request (k = 0, 1, ...) is due `ttft + k * itl` after its arrival. So a request that ran ahead of its targets has slack, and
one that fell behind has none.

What this file does not know: how long a step takes; a target that cannot be met is not noticed before it was missed.
"""

from __future__ import annotations

from collections.abc import Sequence

from slotwise.interfaces.scheduler import SchedulableRequest, SchedulerSetup, Victim
from slotwise_schedulers.budget_shares import BudgetSharingScheduler
from slotwise_schedulers.options import DeadlineOptions


class DeadlineScheduler(BudgetSharingScheduler):
    """Earliest deadline first. While a request waits its deadline stands still, so who arrives later than that goes behind it."""

    def __init__(self, setup: SchedulerSetup) -> None:
        self.options = DeadlineOptions.model_validate(setup.options or {})
        super().__init__(setup, self.options)

    def order_key(self, request: SchedulableRequest, now: float) -> tuple[float, int]:
        return (self.due(request), request.arrival_index)

    def order_reason(self, request: SchedulableRequest, now: float) -> str:
        what = "first token" if request.num_output_tokens == 0 else "next token"
        slack_ms = (self.due(request) - now) * 1e3
        return f"{what} due in {slack_ms:.0f} ms" if slack_ms >= 0 else f"{what} late by {-slack_ms:.0f} ms"

    def choose_victim(self, running: Sequence[SchedulableRequest], blocked: SchedulableRequest) -> Victim:
        """Most slack. Each preemption a request suffered counts as a first-token time of slack less, or two that are level would take
        turns, and recompute for each few tokens."""
        victim = max(
            running, key=lambda request: (self.due(request) - request.num_preemptions * self._ttft(request), request.arrival_index)
        )
        return Victim(
            request=victim, reason=f"most slack: {victim.num_output_tokens} tokens made, {victim.num_preemptions} times preempted"
        )

    def due(self, request: SchedulableRequest) -> float:
        """When its next token is due, seconds, the clock of `arrival_time`."""
        itl_ms = self.options.itl_ms_by_priority.get(request.priority, self.options.itl_ms)
        return request.arrival_time + self._ttft(request) + request.num_output_tokens * itl_ms / 1e3

    def _ttft(self, request: SchedulableRequest) -> float:
        """Seconds."""
        return self.options.ttft_ms_by_priority.get(request.priority, self.options.ttft_ms) / 1e3
