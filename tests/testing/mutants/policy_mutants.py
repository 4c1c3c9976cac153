"""Policies that answer outside the rules, starve, do not end, or cost too much."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from slotwise.interfaces.scheduler import Chunk, Decision, SchedulableRequest, SchedulerState, Victim

from .plain_policy import PlainPolicy


class VictimDoesNotRun(PlainPolicy):
    """Preempts a copy of a running request."""

    caught_by = "victim_is_one_of_the_running"

    def choose_victim(self, running: Sequence[SchedulableRequest], blocked: SchedulableRequest) -> Victim:
        last = running[-1]
        return Victim(request=SimpleNamespace(request_id=last.request_id, priority=last.priority), reason="a copy")


class VictimHasNoReason(PlainPolicy):
    """Preempts without a word."""

    caught_by = "victim_is_one_of_the_running"

    def choose_victim(self, running: Sequence[SchedulableRequest], blocked: SchedulableRequest) -> Victim:
        return Victim(request=running[-1], reason="")


class NoVictim(PlainPolicy):
    """Answers with None where somebody has to go."""

    caught_by = "preemption_ends"

    def choose_victim(self, running: Sequence[SchedulableRequest], blocked: SchedulableRequest) -> Victim:
        return None


class SortsTheRunningRequests(PlainPolicy):
    """Reorders the core's own list to find its victim."""

    caught_by = "victim_is_one_of_the_running"

    def choose_victim(self, running: Sequence[SchedulableRequest], blocked: SchedulableRequest) -> Victim:
        running.sort(key=lambda request: -request.arrival_index)
        return Victim(request=running[0], reason="sorted last")


class EmptyChunk(PlainPolicy):
    """Schedules nothing of a long prompt while others wait."""

    caught_by = "chunk_is_within_bounds"

    def choose_chunk(self, request: SchedulableRequest, num_tokens: int, state: SchedulerState) -> Chunk:
        return Chunk(num_tokens=0 if state.num_waiting > 1 else num_tokens, reason="let others go first")


class ChunkTooLarge(PlainPolicy):
    """Schedules the whole prompt whatever the budget is."""

    caught_by = "chunk_is_within_bounds"

    def choose_chunk(self, request: SchedulableRequest, num_tokens: int, state: SchedulerState) -> Chunk:
        return Chunk(num_tokens=max(num_tokens, request.num_prompt_tokens), reason="all of it")


class KeyIsNotTotal(PlainPolicy):
    """Two requests of one priority are level."""

    caught_by = "order_is_total"

    def order_key(self, request: SchedulableRequest, now: float) -> Any:
        return request.priority


class KeyIsNotANumber(PlainPolicy):
    """A key that is neither before nor behind any other."""

    caught_by = "order_is_total"

    def order_key(self, request: SchedulableRequest, now: float) -> Any:
        return float("nan")


class KeysCannotBeCompared(PlainPolicy):
    """Keys of requests with and without a client are of two types."""

    caught_by = "order_is_total"

    def order_key(self, request: SchedulableRequest, now: float) -> Any:
        return request.arrival_index if request.priority else str(request.arrival_index)


class KeyChangesByItself(PlainPolicy):
    """Draws lots at each look."""

    caught_by = "order_is_total"

    def order_key(self, request: SchedulableRequest, now: float) -> Any:
        return (random.random(), request.arrival_index)


class ChangesARequest(PlainPolicy):
    """Raises the urgency of what it looked at, in the request itself."""

    caught_by = "order_is_total"

    def order_key(self, request: SchedulableRequest, now: float) -> Any:
        request.priority -= 1
        return (request.priority, request.arrival_index)


class RefusesWithoutAReason(PlainPolicy):
    """Says no and not why."""

    caught_by = "everybody_is_served"

    def admit(self, request: SchedulableRequest, state: SchedulerState) -> Decision:
        return Decision(allowed=state.num_running < 2, reason="")


class NeverAdmitsLongPrompts(PlainPolicy):
    """Long prompts, and all behind them, wait for ever."""

    caught_by = "each_request_alone_is_served"

    def admit(self, request: SchedulableRequest, state: SchedulerState) -> Decision:
        return Decision(allowed=request.num_prompt_tokens < 40, reason="too long")


class WaitsForCompany(PlainPolicy):
    """Admits nobody until three wait, and so not the last two."""

    caught_by = "each_request_alone_is_served"

    def admit(self, request: SchedulableRequest, state: SchedulerState) -> Decision:
        return Decision(allowed=state.num_waiting + state.num_running > 2, reason="a batch of three is wanted")


class DisplacesTheMoreUrgent(PlainPolicy):
    """Whoever waits takes the seat of whoever runs."""

    caught_by = "displacement_is_for_the_more_urgent_only"

    def displace(self, candidate: SchedulableRequest, running: Sequence[SchedulableRequest], state: SchedulerState) -> Victim | None:
        return Victim(request=running[0], reason="has run long enough") if running else None


class TakesTurnsForEver(PlainPolicy):
    """Who has computed least takes the seat of who has computed more, a token at a time, so that nobody ends."""

    caught_by = "displacement_is_for_the_more_urgent_only"

    def order_key(self, request: SchedulableRequest, now: float) -> Any:
        return (request.num_computed_tokens, request.arrival_index)

    def choose_chunk(self, request: SchedulableRequest, num_tokens: int, state: SchedulerState) -> Chunk:
        return Chunk(num_tokens=1, reason="a token each")

    def displace(self, candidate: SchedulableRequest, running: Sequence[SchedulableRequest], state: SchedulerState) -> Victim | None:
        ahead = max(running, key=lambda request: (request.num_computed_tokens, request.arrival_index), default=None)
        return None if ahead is None or ahead.num_computed_tokens == 0 else Victim(request=ahead, reason="is ahead")


class DrawsChunksByLot(PlainPolicy):
    """The same traffic is never served the same way twice."""

    caught_by = "same_traffic_is_scheduled_the_same"

    def choose_chunk(self, request: SchedulableRequest, num_tokens: int, state: SchedulerState) -> Chunk:
        return Chunk(num_tokens=random.randint(1, num_tokens), reason="drawn")


class LastComeFirstServed(PlainPolicy):
    """Promises that nobody is overtaken, and serves the newest."""

    caught_by = "nobody_waits_longer_than_promised"

    def order_key(self, request: SchedulableRequest, now: float) -> Any:
        return -request.arrival_index


class LooksAtAllWhoWait(PlainPolicy):
    """A queue of its own that searches everybody for its head."""

    caught_by = "cost_does_not_grow_with_who_waits"

    def make_queue(self):
        return _SearchedQueue()


class KeepsWhoLeft(PlainPolicy):
    """Remembers every request it ever scheduled."""

    caught_by = "forgets_who_left"

    def on_scheduled(self, request: SchedulableRequest, num_tokens: int) -> None:
        self.__dict__.setdefault("history", []).append(request)


class TripsOverAnAbort(PlainPolicy):
    """Takes it that whoever ends was scheduled before."""

    caught_by = "abort_is_legal_at_any_time"

    def on_finished(self, request: SchedulableRequest) -> None:
        self.scheduled.remove(request.request_id)


class QueueLosesOne(PlainPolicy):
    """Its queue forgets a request when another one is removed from the middle."""

    caught_by = "own_queue_keeps_everybody"

    def make_queue(self):
        return _ForgetfulQueue()


class QueueChangesItsMind(PlainPolicy):
    """Its queue puts another one first at each look."""

    caught_by = "own_queue_keeps_everybody"

    def make_queue(self):
        return _FickleQueue()


class _SearchedQueue:
    def __init__(self) -> None:
        self.waiting: dict[str, SchedulableRequest] = {}

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Iterator[SchedulableRequest]:
        return iter(list(self.waiting.values()))

    def add(self, request: SchedulableRequest, now: float) -> None:
        self.waiting[request.request_id] = request

    def peek(self, now: float) -> SchedulableRequest:
        return min(self.waiting.values(), key=lambda request: (request.priority, request.arrival_index))

    def remove(self, request: SchedulableRequest) -> None:
        self.waiting.pop(request.request_id, None)


class _ForgetfulQueue(_SearchedQueue):
    def remove(self, request: SchedulableRequest) -> None:
        is_head = self.waiting and self.peek(0.0) is request
        super().remove(request)
        if not is_head and len(self.waiting) > 4:
            self.waiting.popitem()


class _FickleQueue(_SearchedQueue):
    def peek(self, now: float) -> SchedulableRequest:
        self.waiting = dict([*list(self.waiting.items())[1:], *list(self.waiting.items())[:1]])
        return next(iter(self.waiting.values()))
