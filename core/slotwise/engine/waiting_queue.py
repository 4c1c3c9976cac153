"""Waiting requests in the policy's order: a heap whose removed entries are dropped when they reach the top."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from slotwise.engine.request import Request
from slotwise.interfaces.scheduler import SchedulerPolicy


class _Entry:
    """Heap entry; `request` becomes None when it was removed from the middle."""

    __slots__ = ("key", "request")

    def __init__(self, key: Any, request: Request) -> None:
        self.key = key
        self.request: Request | None = request

    def __lt__(self, other: _Entry) -> bool:
        return bool(self.key < other.key)


class WaitingQueue:
    """add, pop and remove cost O(log n), whatever waits; peek costs O(1) amortised."""

    def __init__(self, policy: SchedulerPolicy) -> None:
        self._policy = policy
        self._heap: list[_Entry] = []
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        """In no particular order."""
        return (entry.request for entry in self._entries.values() if entry.request is not None)

    def add(self, request: Request, now: float) -> None:
        entry = _Entry(self._policy.order_key(request, now), request)
        self._entries[request.request_id] = entry
        heapq.heappush(self._heap, entry)

    def peek(self) -> Request:
        """The next request by the policy's order. Raises IndexError if none waits."""
        while (request := self._heap[0].request) is None:
            heapq.heappop(self._heap)
        return request

    def pop(self) -> Request:
        request = self.peek()
        heapq.heappop(self._heap)
        del self._entries[request.request_id]
        return request

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands; one that does not wait is ignored."""
        entry = self._entries.pop(request.request_id, None)
        if entry is not None:
            entry.request = None

    def rekey(self, now: float) -> None:
        """Ask the policy for every key again (policies with `dynamic_order`)."""
        waiting = list(self)
        self._heap.clear()
        self._entries.clear()
        for request in waiting:
            self.add(request, now)
