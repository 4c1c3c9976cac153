"""The requests of one engine core: who runs, who waits, who is set aside, and how they come and go.

What this file does not know: token budgets, chunks, what a step computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from slotwise.engine.outputs import EngineCoreOutput
from slotwise.engine.request import Request, RequestStatus
from slotwise.engine.scheduler_limits import SchedulerLimits
from slotwise.engine.waiting_queue import WaitingQueue
from slotwise.interfaces.kv_cache import KVCacheManager
from slotwise.interfaces.scheduler import RequestQueue, SchedulerPolicy


class RequestTable:
    """Base of the scheduler. Every request is in exactly one place: running, waiting, or set aside (a blocked status)."""

    def __init__(
        self, limits: SchedulerLimits, policy: SchedulerPolicy, kv_cache: KVCacheManager, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits
        self.policy = policy
        self.kv_cache = kv_cache
        self.requests: dict[str, Request] = {}
        self.running: list[Request] = []
        """In admission order."""
        own_queue = policy.make_queue()
        self.waiting: RequestQueue = WaitingQueue(policy) if own_queue is None else own_queue  # an empty queue is falsy
        self.keep_finished = False
        """Somebody calls `take_finished` once a step."""
        self._finished: list[Request] = []
        self._late_outputs: list[EngineCoreOutput] = []
        """Ends of sessions that came about between steps."""
        self._clock = clock
        self._finished_request_ids: set[str] = set()
        self._tells_finished = overrides(policy, "on_finished")

    def add_request(self, request: Request) -> None:
        """Let a request wait. Raises ValueError if one of that id is already here."""
        if request.request_id in self.requests:
            raise ValueError(f"a request with the internal id {request.request_id!r} is already in the engine")
        self.requests[request.request_id] = request
        if not request.status.is_blocked:
            self.waiting.add(request, self._clock())

    def unblock(self, request_id: str) -> None:
        """What a set-aside request waited for is there: let it wait for its turn. Others are ignored."""
        request = self.requests.get(request_id)
        if request is not None and request.status.is_blocked:
            request.status = RequestStatus.WAITING
            self.waiting.add(request, self._clock())

    def reject(self, request_id: str, error: str) -> None:
        """End a set-aside request that cannot be served; the next step's outputs tell of it. Unknown and ended ones are ignored."""
        for request in self.finish_requests([request_id], RequestStatus.FINISHED_ERROR):
            self._late_outputs.append(
                EngineCoreOutput(request_id=request_id, new_token_ids=[], finish_reason=request.finish_reason, error=error)
            )

    def extend_session(self, request_id: str, token_ids: Sequence[int] | None) -> None:
        """More input for a session, or None for the end of its input. Unknown and ended requests are ignored."""
        request = self.requests.get(request_id)
        if request is None:
            return
        request.pending_inputs.append(None if token_ids is None else list(token_ids))
        if request.status is RequestStatus.WAITING_FOR_STREAMING_REQ:
            self._begin_turn(request)
            if request.is_finished:
                self._late_outputs.append(EngineCoreOutput(request_id=request_id, new_token_ids=[], finish_reason=request.finish_reason))

    def finish_requests(self, request_ids: Iterable[str], status: RequestStatus) -> list[Request]:
        """End requests from outside (abort, stop string); unknown and ended ones are ignored. Returns those that ended now."""
        ended = []
        for request_id in request_ids:
            request = self.requests.get(request_id)
            if request is None:
                continue
            self._leave_queue(request, request.status)
            request.status = status
            self._release(request)
            ended.append(request)
        return ended

    def _leave_queue(self, request: Request, status: RequestStatus) -> None:
        if status is RequestStatus.RUNNING:
            self.running.remove(request)
        elif not status.is_blocked:
            self.waiting.remove(request)

    @property
    def has_requests(self) -> bool:
        """Something runs or waits for its turn, or an end has not been told of yet. What is set aside gives no work."""
        return bool(self.running or len(self.waiting) or self._finished_request_ids or self._late_outputs)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    def _preempt(self, request: Request, now: float) -> None:
        """All KV is dropped; output tokens are kept and will be recomputed like a prompt."""
        self.running.remove(request)
        self.kv_cache.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.spec_token_ids = []
        request.num_preemptions += 1
        self.waiting.add(request, now)

    def _end_turn(self, request: Request) -> None:
        """Give up seat and blocks, which stay findable, and go on with the next input if there is one."""
        self.kv_cache.free(request)
        request.status = RequestStatus.WAITING_FOR_STREAMING_REQ
        request.stop_reason = None
        request.num_computed_tokens = 0
        request.num_stale_outputs += request.num_output_placeholders
        request.num_output_placeholders = 0
        if request.pending_inputs:
            self._begin_turn(request)

    def _begin_turn(self, request: Request) -> None:
        """What was said so far becomes the prompt, except the last sampled token, whose KV was never computed.

        The end of the input, or of the context, ends the request.
        """
        token_ids = request.pending_inputs.popleft()
        if token_ids is None or request.num_tokens - 1 + len(token_ids) >= self.limits.max_model_len:
            request.status = RequestStatus.FINISHED_STOPPED if token_ids is None else RequestStatus.FINISHED_LENGTH_CAPPED
            self._release(request)
            return
        request.all_token_ids[-1:] = token_ids
        request.num_prompt_tokens = request.num_tokens
        request.arrival_time = self._clock()
        request.num_cached_tokens = -1
        request.status = RequestStatus.WAITING
        self.waiting.add(request, self._clock())

    def _release(self, request: Request) -> None:
        """Last act for a request whose status is final."""
        self.kv_cache.free(request)
        del self.requests[request.request_id]
        self._finished_request_ids.add(request.request_id)
        if self.keep_finished:
            self._finished.append(request)
        if self._tells_finished:
            self.policy.on_finished(request)

    def take_finished(self) -> list[Request]:
        """Requests that ended since the last call, if `keep_finished`."""
        finished, self._finished = self._finished, []
        return finished

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> bool:
        """Forget all cached prefixes. False while requests hold blocks, unless they are preempted first, youngest first."""
        if preempt_running:
            for request in reversed(self.running.copy()):
                self._preempt(request, self._clock())
        return self.kv_cache.reset_prefix_cache()


def overrides(policy: SchedulerPolicy, method: str) -> bool:
    """Whether a policy answers this question itself; one that does not is never asked."""
    return getattr(type(policy), method) is not getattr(SchedulerPolicy, method)
