"""`ObservedQueue`: a policy's own waiting queue, each answer compared with who really waits.

What this file does not know: in which order they should come.
"""

from __future__ import annotations

from collections.abc import Iterator

from slotwise.interfaces.scheduler import RequestQueue, SchedulableRequest
from slotwise.testing.verdicts import require


class ObservedQueue:
    """Fulfils `RequestQueue` by asking another one."""

    def __init__(self, queue: RequestQueue) -> None:
        self._queue = queue
        self._waiting: dict[str, SchedulableRequest] = {}

    def __len__(self) -> int:
        length = len(self._queue)
        require(length == len(self._waiting), f"{len(self._waiting)} requests wait, the policy's queue says {length}")
        return length

    def __iter__(self) -> Iterator[SchedulableRequest]:
        listed = list(self._queue)
        require(
            sorted(request.request_id for request in listed) == sorted(self._waiting),
            f"{len(self._waiting)} requests wait, the policy's queue lists {len(listed)}, or others",
        )
        return iter(listed)

    def add(self, request: SchedulableRequest, now: float) -> None:
        self._queue.add(request, now)
        self._waiting[request.request_id] = request
        list(self)

    def peek(self, now: float) -> SchedulableRequest:
        head = self._queue.peek(now)
        require(self._waiting.get(head.request_id) is head, f"the policy's queue puts {head.request_id} first, which does not wait")
        require(self._queue.peek(now) is head, "the policy's queue put two different requests first, one right after the other")
        return head

    def remove(self, request: SchedulableRequest) -> None:
        """Told twice: a request that does not wait is to be ignored."""
        self._queue.remove(request)
        self._waiting.pop(request.request_id, None)
        self._queue.remove(request)
        list(self)
