"""Virtual token counters: how much service each client had, and which of those that wait had the least.

Source: Sheng et al. 2024, "Fairness in Serving Large Language Models", algorithm 2 (VTC) and its weighted form. A client that starts to
wait is lifted to the least-served of those that wait already, or, if none does, to the one that waited last: idle time earns no credit.

What this file does not know: requests; it is told of clients and charges.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Final

_DEFAULT_WEIGHT: Final = 1.0


class _Client:
    __slots__ = ("counter", "entry", "num_requests", "num_waiting")

    def __init__(self) -> None:
        self.counter = 0.0
        self.num_waiting = 0
        self.num_requests = 0
        """In the engine, waiting or running."""
        self.entry = 0
        """Number of its valid heap entry."""


class TokenCounters:
    """Every call costs O(log clients), amortised.

    A client is forgotten once it has no request and would be lifted anyway. Of those that were served more than who waits, `max_idle` are
    remembered, the most served ones; who is forgotten early may come back with at most what it was ahead by.
    """

    def __init__(self, client_weights: Mapping[str, float], *, max_idle: int = 1024) -> None:
        self._weights = client_weights
        self._max_idle = max_idle
        self._clients: dict[str, _Client] = {}
        self._least: list[tuple[float, int, str]] = []
        """Heap of waiting clients by a counter that may be too small by now; entries of an old number are void."""
        self._idle: list[tuple[float, str]] = []
        """Heap of clients that had no request left when they were entered."""
        self._num_entries = 0
        self._level = 0.0
        """Counter of the client that ceased to wait last, for those that come when nobody waits."""

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._clients

    def __getitem__(self, client_id: str) -> float:
        """Weighted tokens a client was charged, lifts included; for one that is not known, what it would start with."""
        client = self._clients.get(client_id)
        return self._lowest_counter() if client is None else client.counter

    def weight(self, client_id: str) -> float:
        return self._weights.get(client_id, _DEFAULT_WEIGHT)

    def enter(self, client_id: str) -> None:
        """A request of the client came into the engine."""
        self._clients.setdefault(client_id, _Client()).num_requests += 1

    def leave(self, client_id: str) -> None:
        """A request of the client left the engine."""
        client = self._clients[client_id]
        client.num_requests -= 1
        if client.num_requests == 0:
            heapq.heappush(self._idle, (client.counter, client_id))
        self._forget_idle()

    def start_waiting(self, client_id: str) -> None:
        """One more request of the client waits."""
        client = self._clients[client_id]
        if client.num_waiting == 0:
            client.counter = max(client.counter, self._lowest_counter())
            self._enter_heap(client_id, client)
        client.num_waiting += 1

    def stop_waiting(self, client_id: str) -> None:
        """One request of the client waits no more."""
        client = self._clients[client_id]
        client.num_waiting -= 1
        if client.num_waiting == 0:
            self._level = client.counter

    def charge(self, client_id: str, num_tokens: float) -> None:
        """`num_tokens`, weighted by kind, were served to a client; negative takes back a charge."""
        client = self._clients[client_id]
        client.counter += num_tokens / self.weight(client_id)
        if num_tokens < 0 and client.num_waiting:
            self._enter_heap(client_id, client)

    def least_served(self) -> str:
        """The waiting client with the lowest counter, which stays. Raises IndexError if none waits."""
        while True:
            counter, entry, client_id = self._least[0]
            client = self._clients.get(client_id)
            if client is None or entry != client.entry or client.num_waiting == 0:
                heapq.heappop(self._least)
            elif counter < client.counter:
                heapq.heapreplace(self._least, (client.counter, entry, client_id))
            else:
                return client_id

    def _lowest_counter(self) -> float:
        """Of those that wait; where nobody does, of the one that did last."""
        try:
            return self._clients[self.least_served()].counter
        except IndexError:
            return self._level

    def _enter_heap(self, client_id: str, client: _Client) -> None:
        self._num_entries += 1
        client.entry = self._num_entries
        heapq.heappush(self._least, (client.counter, client.entry, client_id))

    def _forget_idle(self) -> None:
        lowest = self._lowest_counter()
        while self._idle and (self._idle[0][0] <= lowest or len(self._idle) > self._max_idle):
            counter, client_id = heapq.heappop(self._idle)
            client = self._clients.get(client_id)
            if client is not None and client.num_requests == 0 and client.counter == counter:  # else there is a later entry, or will be
                del self._clients[client_id]
