"""The waiting queue of `fair`: requests of one client in order of arrival, of the clients the least served first.

What this file does not know: what a token costs; `fair.py` charges the counters.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from slotwise.interfaces.scheduler import SchedulableRequest
from slotwise_schedulers.token_counters import TokenCounters


class ClientQueue:
    """add, remove and peek cost O(log clients + log requests of the client), amortised."""

    def __init__(
        self,
        counters: TokenCounters,
        *,
        on_add: Callable[[SchedulableRequest], None],
        on_remove: Callable[[SchedulableRequest], None],
    ) -> None:
        """on_add is called before, on_remove after the counters hear of a request that waits or waits no more."""
        self._counters = counters
        self._on_add = on_add
        self._on_remove = on_remove
        self._waiting: dict[str, SchedulableRequest] = {}
        self._queues: dict[str, list[tuple[int, SchedulableRequest]]] = {}
        """Client -> heap by arrival; removed requests are dropped when they come up. Only clients that have one."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[SchedulableRequest]:
        return iter(self._waiting.values())

    def add(self, request: SchedulableRequest, now: float) -> None:
        self._on_add(request)
        client_id = client_of(request)
        self._waiting[request.request_id] = request
        heapq.heappush(self._queues.setdefault(client_id, []), (request.arrival_index, request))
        self._counters.start_waiting(client_id)

    def peek(self, now: float) -> SchedulableRequest:
        queue = self._queues[self._counters.least_served()]
        while not self._waits(queue[0][1]):
            heapq.heappop(queue)
        return queue[0][1]

    def remove(self, request: SchedulableRequest) -> None:
        if self._waiting.pop(request.request_id, None) is None:
            return
        client_id = client_of(request)
        queue = self._queues[client_id]
        while queue and not self._waits(queue[0][1]):
            heapq.heappop(queue)
        if not queue:
            del self._queues[client_id]
        self._on_remove(request)
        self._counters.stop_waiting(client_id)

    def _waits(self, request: SchedulableRequest) -> bool:
        return self._waiting.get(request.request_id) is request


def client_of(request: SchedulableRequest) -> str:
    """Requests without a client share one: the empty name."""
    return request.client_id or ""
