"""Waiting requests in the policy's order: a heap whose removed entries are dropped when they reach the top."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from slotwise.interfaces.scheduler import SchedulableRequest, SchedulerPolicy


class _Entry:
    """Heap entry; `request` becomes None when it was removed from the middle."""

    __slots__ = ("key", "request")

    def __init__(self, key: Any, request: SchedulableRequest) -> None:
        self.key = key
        self.request: SchedulableRequest | None = request

    def __lt__(self, other: _Entry) -> bool:
        return bool(self.key < other.key)


class WaitingQueue:
    """add and remove cost O(log n), whatever waits; peek costs O(1) amortised, and O(n) once a step if the policy's order is dynamic."""

    def __init__(self, policy: SchedulerPolicy) -> None:
        self._policy = policy
        self._heap: list[_Entry] = []
        self._keyed_at = 0.0
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[SchedulableRequest]:
        """In no particular order."""
        return (entry.request for entry in self._entries.values() if entry.request is not None)

    def add(self, request: SchedulableRequest, now: float) -> None:
        entry = _Entry(self._policy.order_key(request, now), request)
        self._entries[request.request_id] = entry
        heapq.heappush(self._heap, entry)

    def peek(self, now: float) -> SchedulableRequest:
        """The next request by the policy's order. Raises IndexError if none waits."""
        if self._policy.dynamic_order and now != self._keyed_at:
            self._rekey(now)
        while (request := self._heap[0].request) is None:
            heapq.heappop(self._heap)
        return request

    def remove(self, request: SchedulableRequest) -> None:
        """Take a request out, wherever it stands; one that does not wait is ignored."""
        entry = self._entries.pop(request.request_id, None)
        if entry is not None:
            entry.request = None

    def _rekey(self, now: float) -> None:
        """Ask the policy for every key again."""
        self._keyed_at = now
        waiting = list(self)
        self._heap.clear()
        self._entries.clear()
        for request in waiting:
            self.add(request, now)
