"""The waiting queue of `longest_prefix`: the requests that arrived first form a window, within which cached tokens decide.

    arrival ->  [ 3  4  7  8 ] 9 10 11 12 ...        window of 4; the one with the most cached tokens is next
                  ^ goes next instead if `max_passes` others started before it, or it waited `max_wait_seconds`

What this file does not know: blocks; how many tokens are cached is asked of a callable.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from slotwise.interfaces.scheduler import SchedulableRequest


class PrefixWindowQueue:
    """add and remove cost O(log waiting + window). peek asks for the cached tokens of the window, once after each start or end of a
    request and once for each that comes into the window; it costs O(1) while nothing changes."""

    def __init__(
        self, cached_prefix_len: Callable[[SchedulableRequest], int] | None, *, window: int, max_passes: int, max_wait_seconds: float | None
    ) -> None:
        """Without `cached_prefix_len` nothing is cached."""
        self._cached_prefix_len = cached_prefix_len
        self._window_len = window
        self._max_passes = max_passes
        self._max_wait_seconds = float("inf") if max_wait_seconds is None else max_wait_seconds
        self._waiting: dict[str, SchedulableRequest] = {}
        self._window: list[SchedulableRequest] = []
        """In order of arrival; not full only if nobody waits behind it."""
        self._behind: list[tuple[tuple[float, int], SchedulableRequest]] = []
        """Heap of those behind the window; removed ones are dropped when they come up."""
        self._scores: dict[str, int] = {}
        self._head: SchedulableRequest | None = None
        """The next one, None if it must be chosen anew."""
        self._num_passes = 0
        self.reason = ""
        """Why the last one peeked at is next."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[SchedulableRequest]:
        return iter(self._waiting.values())

    def add(self, request: SchedulableRequest, now: float) -> None:
        window = self._window
        self._waiting[request.request_id] = request
        if len(window) == self._window_len and _arrival(request) > _arrival(window[-1]):
            heapq.heappush(self._behind, (_arrival(request), request))
            return
        window.append(request)
        window.sort(key=_arrival)
        if len(window) > self._window_len:
            moved = window.pop()
            heapq.heappush(self._behind, (_arrival(moved), moved))
        self._head = None

    def peek(self, now: float) -> SchedulableRequest:
        oldest = self._window[0]
        waited = now - oldest.arrival_time
        if self._num_passes >= self._max_passes:
            self._head, self.reason = oldest, f"its turn: {self._num_passes} that arrived later started before it"
        elif waited > self._max_wait_seconds:
            self._head, self.reason = oldest, f"its turn: arrived {waited:.1f} s ago"
        elif self._head is None:
            self._head = max(self._window, key=self._score)  # of equals the first, which arrived first
            self.reason = f"most cached tokens of {len(self._window)}: {self._score(self._head)}"
        return self._head

    def remove(self, request: SchedulableRequest) -> None:
        if self._waiting.pop(request.request_id, None) is None:
            return
        self._scores.pop(request.request_id, None)
        if request in self._window:
            self._leave_window(request)

    def forget_scores(self) -> None:
        """The cache's content may have changed."""
        self._scores.clear()
        self._head = None

    def _leave_window(self, request: SchedulableRequest) -> None:
        if request is self._window[0]:
            self._num_passes = 0
        elif request is self._head:
            self._num_passes += 1
        if request is self._head:
            self.forget_scores()
        self._window.remove(request)
        while self._behind and len(self._window) < self._window_len:
            _, follower = heapq.heappop(self._behind)
            if self._waiting.get(follower.request_id) is follower and follower not in self._window:
                self._window.append(follower)
                self._head = None

    def _score(self, request: SchedulableRequest) -> int:
        """Cached tokens, as of the last time that a request started or ended."""
        score = self._scores.get(request.request_id)
        if score is None:
            score = self._scores[request.request_id] = self._cached_prefix_len(request) if self._cached_prefix_len else 0
        return score


def _arrival(request: SchedulableRequest) -> tuple[float, int]:
    return (request.arrival_time, request.arrival_index)
