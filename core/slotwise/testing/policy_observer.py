"""`PolicyObserver`: stands between the core's scheduler and a policy, and checks each answer against the contract.

It replaces the policy's methods on that one instance, so the policy's own class stays what the core looks at.
What this file does not know: when the methods are called, and whether everything gets done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from slotwise.interfaces.scheduler import Chunk, Decision, RequestQueue, SchedulableRequest, SchedulerPolicy, SchedulerState, Victim
from slotwise.testing.observed_queue import ObservedQueue
from slotwise.testing.verdicts import ConformanceError, require

MAX_REASON_LEN: Final = 200
"""Characters; a trace shows a reason on one line."""
_FIELDS: Final = tuple(name for name in vars(SchedulableRequest) if isinstance(vars(SchedulableRequest)[name], property))
_OBSERVED: Final = ("order_key", "order_reason", "make_queue", "admit", "choose_chunk", "displace", "choose_victim")


class PolicyObserver:
    """Wraps the methods of `policy`."""

    def __init__(self, policy: SchedulerPolicy) -> None:
        self.has_own_queue = False
        self.num_displacements = 0
        self._keys: dict[str, Any] = {}
        self._original: dict[str, Callable[..., Any]] = {name: getattr(policy, name) for name in _OBSERVED}
        for name in _OBSERVED:
            setattr(policy, name, getattr(self, f"_{name}"))

    def forget(self, request_id: str) -> None:
        """The request left the engine."""
        self._keys.pop(request_id, None)

    def _make_queue(self) -> RequestQueue | None:
        queue: RequestQueue | None = self._original["make_queue"]()
        self.has_own_queue = queue is not None
        return None if queue is None else ObservedQueue(queue)

    def _order_key(self, request: SchedulableRequest, now: float) -> Any:
        with _unchanged("order_key", request):
            key = self._original["order_key"](request, now)
            again = self._original["order_key"](request, now)
        require(
            not _is_before(key, again) and not _is_before(again, key),
            f"order_key of {request.request_id} was {key!r} and then {again!r}, at one moment",
        )
        for other_id, other in self._keys.items():
            if other_id != request.request_id:
                check_order(request.request_id, key, other_id, other)
        self._keys[request.request_id] = key
        return key

    def _order_reason(self, request: SchedulableRequest, now: float) -> str:
        with _unchanged("order_reason", request):
            reason: str = self._original["order_reason"](request, now)
        check_reason("order_reason", reason)
        return reason

    def _admit(self, request: SchedulableRequest, state: SchedulerState) -> Decision:
        with _unchanged("admit", request):
            decision = self._original["admit"](request, state)
        if not isinstance(decision, Decision):
            raise ConformanceError(f"admit answers with a Decision, not {decision!r}")
        require(isinstance(decision.allowed, bool), f"Decision.allowed is True or False, not {decision.allowed!r}")
        check_reason("admit", decision.reason, may_be_empty=decision.allowed)
        return decision

    def _choose_chunk(self, request: SchedulableRequest, num_tokens: int, state: SchedulerState) -> Chunk:
        with _unchanged("choose_chunk", request):
            chunk = self._original["choose_chunk"](request, num_tokens, state)
        if not isinstance(chunk, Chunk):
            raise ConformanceError(f"choose_chunk answers with a Chunk, not {chunk!r}")
        require(
            isinstance(chunk.num_tokens, int) and 1 <= chunk.num_tokens <= num_tokens,
            f"choose_chunk was asked about {num_tokens} tokens and answered {chunk.num_tokens!r}; 1 .. {num_tokens} are possible",
        )
        check_reason("choose_chunk", chunk.reason)
        return chunk

    def _displace(self, candidate: SchedulableRequest, running: Sequence[SchedulableRequest], state: SchedulerState) -> Victim | None:
        with _unchanged("displace", candidate, running):
            victim = self._original["displace"](candidate, running, state)
        if victim is None:
            return None
        _check_victim("displace", victim, running)
        order_key = self._original["order_key"]
        require(
            _is_before(order_key(candidate, state.now), order_key(victim.request, state.now)),
            f"displace let {victim.request.request_id} give way to {candidate.request_id}, which order_key does not put before it: "
            "the two would take turns for ever",
        )
        self.num_displacements += 1
        return _checked(victim)

    def _choose_victim(self, running: Sequence[SchedulableRequest], blocked: SchedulableRequest) -> Victim:
        with _unchanged("choose_victim", blocked, running):
            victim = self._original["choose_victim"](running, blocked)
        _check_victim("choose_victim", victim, running)
        return _checked(victim)


def _checked(victim: Any) -> Victim:
    assert isinstance(victim, Victim)
    return victim


def _check_victim(method: str, victim: Any, running: Sequence[SchedulableRequest]) -> None:
    if not isinstance(victim, Victim):
        raise ConformanceError(f"{method} answers with a Victim, not {victim!r}")
    require(
        any(victim.request is request for request in running),
        f"{method} chose {getattr(victim.request, 'request_id', victim.request)!r}, which is none of the running: "
        f"{[request.request_id for request in running]}",
    )
    check_reason(method, victim.reason, may_be_empty=False)


def check_reason(method: str, reason: Any, *, may_be_empty: bool = True) -> None:
    """A reason is one short line of text."""
    is_line = isinstance(reason, str) and len(reason) <= MAX_REASON_LEN and "\n" not in reason
    require(
        is_line and (reason or may_be_empty),
        f"the reason of {method} is {reason!r}; wanted: one line of {0 if may_be_empty else 1} to {MAX_REASON_LEN} characters",
    )


def check_order(first_id: str, first: Any, second_id: str, second: Any) -> None:
    """Of two different requests exactly one comes first."""
    require(
        _is_before(first, second) != _is_before(second, first),
        f"order_key leaves open which of {first_id} ({first!r}) and {second_id} ({second!r}) comes first; end it with arrival_index",
    )


def _is_before(first: Any, second: Any) -> bool:
    try:
        return bool(first < second)
    except TypeError as error:
        raise ConformanceError(f"order_key answers cannot be compared: {first!r} and {second!r} ({error})") from error


def snapshot(request: SchedulableRequest) -> tuple[Any, ...]:
    """Everything a policy may know of a request."""
    return tuple(getattr(request, name) for name in _FIELDS)


@contextmanager
def _unchanged(method: str, request: SchedulableRequest, running: Sequence[SchedulableRequest] = ()) -> Iterator[None]:
    """Requests, and the list of running ones, are read only."""
    order = list(running)
    before = [snapshot(known) for known in (request, *order)]
    yield
    require(
        len(running) == len(order) and all(now is then for now, then in zip(running, order, strict=True)),
        f"{method} changed the list of running requests, which is read only",
    )
    for known, fields in zip((request, *order), before, strict=True):
        require(snapshot(known) == fields, f"{method} changed {known.request_id}, which is read only: {fields} became {snapshot(known)}")
