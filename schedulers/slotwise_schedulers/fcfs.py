"""`fcfs`: requests start in the order they arrived.

What this file does not know: tokens, blocks; the core counts both.
"""

from __future__ import annotations

from collections.abc import Sequence

from slotwise.interfaces.scheduler import SchedulableRequest, SchedulerSetup, Victim
from slotwise_schedulers.budget_shares import BudgetSharingScheduler
from slotwise_schedulers.options import FcfsOptions


class FcfsScheduler(BudgetSharingScheduler):
    """First come, first served. A preempted request keeps its place: ahead of everything that arrived after it. The next turn of a session
    arrives when its input does.

    Strict unless `share_budget`: a prompt of n tokens that is being computed keeps all that arrived after it from starting for
    ceil(n / budget) steps.
    """

    def __init__(self, setup: SchedulerSetup) -> None:
        super().__init__(setup, FcfsOptions.model_validate(setup.options or {}))

    def order_key(self, request: SchedulableRequest, now: float) -> tuple[float, int]:
        return (request.arrival_time, request.arrival_index)

    def order_reason(self, request: SchedulableRequest, now: float) -> str:
        return "arrived first"

    def choose_victim(self, running: Sequence[SchedulableRequest], blocked: SchedulableRequest) -> Victim:
        """The one admitted last: it has the least to recompute, and those ahead of it keep their place."""
        return Victim(request=running[-1], reason="admitted last")
