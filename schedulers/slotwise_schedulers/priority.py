"""`priority`: the most urgent request starts first, the least urgent one gives way.

What this file does not know: tokens, blocks; the core counts both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slotwise.interfaces.scheduler import SchedulableRequest, SchedulerPolicy, Victim


class PriorityScheduler(SchedulerPolicy):
    """Smaller `priority` first, earlier arrival among equals. It orders admission and preemption; running requests are not displaced
    for a waiting one while blocks suffice."""

    def order_key(self, request: SchedulableRequest, now: float) -> Any:
        return _urgency(request)

    def choose_victim(self, running: Sequence[SchedulableRequest], blocked: SchedulableRequest) -> Victim:
        """The least urgent, the latest among equals, which may be `blocked` itself: it must not push out a more urgent one."""
        victim = max(running, key=_urgency)
        return Victim(request=victim, reason=f"least urgent: priority {victim.priority}")


def _urgency(request: SchedulableRequest) -> tuple[int, float, int]:
    return (request.priority, request.arrival_time, request.arrival_index)
