"""`longest_prefix`: of those that wait longest, the request with the most cached tokens starts first.

What this file does not know: how the window is kept (`prefix_window.py`), where a prefix is cached.
"""

from __future__ import annotations

from collections.abc import Sequence

from slotwise.interfaces.scheduler import RequestQueue, SchedulableRequest, SchedulerSetup, Victim
from slotwise_schedulers.budget_shares import BudgetSharingScheduler
from slotwise_schedulers.options import LongestPrefixOptions
from slotwise_schedulers.prefix_window import PrefixWindowQueue


class LongestPrefixScheduler(BudgetSharingScheduler):
    """Requests that share a prefix run one after the other, while it is cached. Without a cache the order is that of arrival."""

    def __init__(self, setup: SchedulerSetup) -> None:
        self.options = LongestPrefixOptions.model_validate(setup.options or {})
        super().__init__(setup, self.options)
        self._queue = PrefixWindowQueue(
            setup.cached_prefix_len,
            window=self.options.window,
            max_passes=self.options.max_passes,
            max_wait_seconds=self.options.max_wait_seconds,
        )

    def make_queue(self) -> RequestQueue:
        return self._queue

    def order_key(self, request: SchedulableRequest, now: float) -> tuple[float, int]:
        """Arrival: the order among requests with equally many cached tokens. The queue does the rest."""
        return (request.arrival_time, request.arrival_index)

    def order_reason(self, request: SchedulableRequest, now: float) -> str:
        return self._queue.reason

    def choose_victim(self, running: Sequence[SchedulableRequest], blocked: SchedulableRequest) -> Victim:
        """The one admitted last: it has the least to recompute."""
        return Victim(request=running[-1], reason="admitted last")

    def on_finished(self, request: SchedulableRequest) -> None:
        """Its seat will be given away: count cached tokens anew."""
        super().on_finished(request)
        self._queue.forget_scores()
