"""`fcfs`: requests start in the order they arrived.

What this file does not know: tokens, blocks; the core counts both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slotwise.interfaces.scheduler import SchedulableRequest, SchedulerPolicy, Victim


class FcfsScheduler(SchedulerPolicy):
    """First come, first served. A preempted request keeps its place: ahead of everything that arrived after it."""

    def order_key(self, request: SchedulableRequest, now: float) -> Any:
        return request.arrival_index

    def choose_victim(self, running: Sequence[SchedulableRequest], blocked: SchedulableRequest) -> Victim:
        """The one admitted last: it has the least to recompute, and those ahead of it keep their place."""
        return Victim(request=running[-1], reason="admitted last")
