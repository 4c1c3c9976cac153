"""A scheduler policy that answers every question correctly, and overrides every method: each mutant breaks one answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from slotwise.interfaces.scheduler import (
    ALLOWED,
    Chunk,
    Decision,
    SchedulableRequest,
    SchedulerPolicy,
    SchedulerSetup,
    SchedulerState,
    Victim,
)


class PlainPolicy(SchedulerPolicy):
    """Smallest priority first; gives the seat of the least urgent to a more urgent one."""

    caught_by: ClassVar[str]
    """Of a mutant: the case that must fail."""

    def __init__(self, setup: SchedulerSetup) -> None:
        super().__init__(setup)
        self.scheduled: set[str] = set()

    def order_key(self, request: SchedulableRequest, now: float) -> Any:
        return (request.priority, request.arrival_index)

    def order_reason(self, request: SchedulableRequest, now: float) -> str:
        return f"priority {request.priority}"

    def admit(self, request: SchedulableRequest, state: SchedulerState) -> Decision:
        return ALLOWED

    def choose_chunk(self, request: SchedulableRequest, num_tokens: int, state: SchedulerState) -> Chunk:
        return Chunk(num_tokens=max(1, num_tokens // 2) if state.num_waiting else num_tokens, reason="half while others wait")

    def displace(self, candidate: SchedulableRequest, running: Sequence[SchedulableRequest], state: SchedulerState) -> Victim | None:
        last = max(running, key=lambda request: (request.priority, request.arrival_index), default=None)
        if last is None or last.priority <= candidate.priority:
            return None
        return Victim(request=last, reason="less urgent")

    def choose_victim(self, running: Sequence[SchedulableRequest], blocked: SchedulableRequest) -> Victim:
        return Victim(request=max(running, key=lambda request: (request.priority, request.arrival_index)), reason="least urgent")

    def on_scheduled(self, request: SchedulableRequest, num_tokens: int) -> None:
        self.scheduled.add(request.request_id)

    def on_finished(self, request: SchedulableRequest) -> None:
        self.scheduled.discard(request.request_id)
