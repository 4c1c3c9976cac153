"""The scheduler's mechanism: one token budget, chunked prefill, prefix hits, preemption by recomputation.

There is no prefill or decode phase: each step moves `num_computed_tokens` of its requests towards the tokens they have. Which
waiting request is next, who is preempted and how long a chunk is are the policy's answers; the KV manager says what fits.

What this file does not know: text, tensors, models.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from slotwise.engine.outputs import EngineCoreOutput
from slotwise.engine.request import Request, RequestStatus
from slotwise.engine.scheduler_output import CachedRequestData, HeldBlocks, ModelRunnerOutput, NewRequestData, SchedulerOutput
from slotwise.engine.stop_check import check_stop
from slotwise.engine.waiting_queue import WaitingQueue
from slotwise.interfaces.kv_cache import NULL_BLOCK_ID, Allocation, BlockCopy, KVCacheManager
from slotwise.interfaces.scheduler import RequestQueue, SchedulerPolicy, SchedulerState, Victim


class PauseState(enum.Enum):
    """What may be scheduled."""

    UNPAUSED = enum.auto()
    PAUSED_NEW = enum.auto()
    """Running requests go on, none is admitted."""
    PAUSED_ALL = enum.auto()


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerLimits:
    """What the core enforces whatever the policy says."""

    max_num_seqs: int
    max_num_scheduled_tokens: int
    max_model_len: int
    """Never more positions than this, and never more than one request alone can hold in the pool."""
    block_size: int = 1
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    reserve_whole_prompt: bool = False


@dataclass(slots=True)
class _Step:
    """What is decided so far in one `schedule`."""

    budget: int
    now: float
    num_scheduled: dict[str, int] = field(default_factory=dict)
    new: list[Request] = field(default_factory=list)
    cached: list[Request] = field(default_factory=list)
    resumed: set[str] = field(default_factory=set)
    new_block_ids: dict[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """Of requests that gained blocks; most of those that generate gain none."""
    block_copies: dict[str, tuple[BlockCopy, ...]] = field(default_factory=dict)
    drafts: dict[str, list[int]] = field(default_factory=dict)
    preempted: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)

    def note(self, request: Request, reason: str) -> None:
        """Keep a policy's reason for the trace."""
        if reason:
            known = self.reasons.get(request.request_id)
            self.reasons[request.request_id] = f"{known}; {reason}" if known else reason


class Scheduler:
    """Owns the requests of one engine core. Not thread-safe."""

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
        self.pause_state = PauseState.UNPAUSED
        self.record_reasons = False
        """Somebody reads `SchedulerOutput.reasons`: ask the policy why it orders as it does."""
        self.record_held_blocks = False
        """The KV sanitizer reads `SchedulerOutput.held_blocks`; filling it costs as much as the contexts are long."""
        self.keep_finished = False
        """Somebody calls `take_finished` once a step."""
        self._finished: list[Request] = []
        self._late_outputs: list[EngineCoreOutput] = []
        """Ends of sessions that came about between steps."""
        self._clock = clock
        self._step_count = 0
        self._finished_request_ids: set[str] = set()
        overridden = {name for name in ("admit", "choose_chunk", "displace", "on_scheduled", "on_finished") if _overrides(policy, name)}
        self._asks_admission = "admit" in overridden
        self._asks_chunk = "choose_chunk" in overridden and limits.enable_chunked_prefill
        self._asks_displacement = "displace" in overridden
        self._tells_scheduled = "on_scheduled" in overridden
        self._tells_finished = "on_finished" in overridden

    # -- requests in and out -------------------------------------------------------------------------------------------

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

    # -- one step ------------------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Decide what the next step computes. Running requests first, in admission order, then waiting ones in the policy's."""
        budget = 0 if self.pause_state is PauseState.PAUSED_ALL else self.limits.max_num_scheduled_tokens
        step = _Step(budget=budget, now=self._clock())
        self._schedule_running(step)
        if not step.preempted and self.pause_state is PauseState.UNPAUSED:
            self._schedule_waiting(step)
        return self._build_output(step)

    def _schedule_running(self, step: _Step) -> None:
        running, allocate = self.running, self.kv_cache.allocate
        position = 0
        while position < len(running) and step.budget > 0:
            request = running[position]
            num_tokens = self._num_tokens_to_schedule(request, request.num_computed_tokens, step)
            if num_tokens == 0 or (request.num_output_placeholders and self._ends_in_flight(request)):
                position += 1
                continue
            allocation = allocate(request, num_tokens)
            while allocation is None:
                position = self._preempt_for(request, position, step)
                if request.status is RequestStatus.PREEMPTED:
                    break
                allocation = allocate(request, num_tokens)
            if allocation is None:
                continue  # `position` already points at the request after the one that left
            self._commit(request, num_tokens, allocation, step)
            step.cached.append(request)
            position += 1

    def _schedule_waiting(self, step: _Step) -> None:
        while len(self.waiting) and step.budget > 0:
            request = self.requests[self.waiting.peek(step.now).request_id]
            if len(self.running) >= self.limits.max_num_seqs:
                if self._displace_for(request, step):
                    continue
                break
            if self._asks_admission and not self._is_admitted(request, step):
                break
            prefix = self.kv_cache.find_cached_prefix(request)
            num_tokens = self._num_tokens_to_schedule(request, prefix.num_tokens, step)
            if not self.limits.enable_chunked_prefill and prefix.num_tokens + num_tokens < request.num_tokens:
                break
            allocation = self.kv_cache.allocate(
                request, num_tokens, cached_prefix=prefix, reserve_whole_prompt=self.limits.reserve_whole_prompt
            )
            if allocation is None:
                if self._displace_for(request, step):
                    continue
                break
            self.waiting.remove(request)
            self._admit(request, prefix.num_tokens, step)
            self._commit(request, num_tokens, allocation, step)

    def _is_admitted(self, request: Request, step: _Step) -> bool:
        decision = self.policy.admit(request, self._state(step))
        step.note(request, decision.reason)
        return decision.allowed

    def _displace_for(self, request: Request, step: _Step) -> bool:
        """Preempt a running request that the policy holds less urgent.

        Not after an admission: what was admitted may count on blocks that the displaced one was to fill in this step.
        """
        if not self._asks_displacement or step.new or step.resumed:
            return False
        victim = self.policy.displace(request, self.running, self._state(step))
        if victim is None:
            return False
        self._preempt_in_step(victim, step)
        return True

    def _ends_in_flight(self, request: Request) -> bool:
        """Steps that still run must give the request its last token: nothing may be computed after it. Asked only if steps still run."""
        in_flight = request.num_output_placeholders
        return request.num_output_tokens + in_flight >= request.max_tokens or request.num_tokens + in_flight >= self.limits.max_model_len

    def _num_tokens_to_schedule(self, request: Request, num_computed: int, step: _Step) -> int:
        """Tokens of `request` that this step may compute; 0 if there is nothing to do for it. The step has budget left."""
        num_tokens = request.num_tokens_with_spec - num_computed
        if num_tokens == 1:  # all there is to say of most requests in most steps
            return 1 if num_computed < self.limits.max_model_len else 0
        threshold = self.limits.long_prefill_token_threshold
        if 0 < threshold < num_tokens and self.limits.enable_chunked_prefill and len(self.requests) > 1:
            num_tokens = threshold
        num_tokens = min(num_tokens, step.budget, self.limits.max_model_len - num_computed)
        if num_tokens > 1 and self._asks_chunk:
            chunk = self.policy.choose_chunk(request, num_tokens, self._state(step))
            step.note(request, chunk.reason)
            num_tokens = max(1, min(num_tokens, chunk.num_tokens))
        return max(num_tokens, 0)

    def _commit(self, request: Request, num_tokens: int, allocation: Allocation, step: _Step) -> None:
        """The request takes part in this step."""
        request_id = request.request_id
        step.num_scheduled[request_id] = num_tokens
        if any(allocation.new_block_ids):
            step.new_block_ids[request_id] = allocation.new_block_ids
        if allocation.block_copies:
            step.block_copies[request_id] = allocation.block_copies
        step.budget -= num_tokens
        if request.spec_token_ids:
            num_drafts = num_tokens + request.num_computed_tokens - request.num_tokens
            if num_drafts > 0:
                step.drafts[request_id] = request.spec_token_ids[:num_drafts]
            request.spec_token_ids = []

    def _admit(self, request: Request, num_cached_tokens: int, step: _Step) -> None:
        """A waiting request starts to run, for the first time or again."""
        if request.status is RequestStatus.PREEMPTED:
            step.cached.append(request)
            step.resumed.add(request.request_id)
        else:
            step.new.append(request)
        if self.record_reasons:
            step.note(request, self.policy.order_reason(request, step.now))
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = num_cached_tokens
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_cached_tokens
        self.running.append(request)

    # -- preemption ----------------------------------------------------------------------------------------------------

    def _preempt_for(self, blocked: Request, position: int, step: _Step) -> int:
        """Preempt the policy's victim so that `blocked`, at `position`, may get its blocks. Returns `blocked`'s new position."""
        victim = self.policy.choose_victim(self.running, blocked)
        victim_position = self._preempt_in_step(victim, step)
        return position - 1 if victim_position < position else position

    def _preempt_in_step(self, victim: Victim, step: _Step) -> int:
        """Returns where the victim stood among the running requests."""
        request = self.requests[victim.request.request_id]
        position = self.running.index(request)
        if request.request_id in step.num_scheduled:
            self._undo(request, step)
        step.preempted.add(request.request_id)
        step.note(request, victim.reason)
        self._preempt(request, step.now)
        return position

    def _undo(self, request: Request, step: _Step) -> None:
        """Take a request that was already scheduled out of this step, as if it had not been looked at."""
        step.budget += step.num_scheduled.pop(request.request_id)
        step.new_block_ids.pop(request.request_id, None)
        step.block_copies.pop(request.request_id, None)
        step.drafts.pop(request.request_id, None)
        step.cached.remove(request)

    def _preempt(self, request: Request, now: float) -> None:
        """All KV is dropped; output tokens are kept and will be recomputed like a prompt."""
        self.running.remove(request)
        self.kv_cache.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.spec_token_ids = []
        request.num_preemptions += 1
        self.waiting.add(request, now)

    # -- the step's record ---------------------------------------------------------------------------------------------

    def _build_output(self, step: _Step) -> SchedulerOutput:
        total = self.limits.max_num_scheduled_tokens - step.budget if step.num_scheduled else 0
        assert step.budget >= 0, "scheduled more tokens than the budget"
        assert len(self.running) <= self.limits.max_num_seqs, "more requests run than max_num_seqs"
        output = SchedulerOutput(
            step=self._step_count,
            scheduled_new_requests=[self._new_request_data(request) for request in step.new],
            scheduled_cached_requests=_cached_request_data(step),
            num_scheduled_tokens=step.num_scheduled,
            total_num_scheduled_tokens=total,
            scheduled_spec_decode_tokens=step.drafts,
            finished_request_ids=self._finished_request_ids,
            preempted_request_ids=step.preempted,
            block_copies=[copy for copies in step.block_copies.values() for copy in copies],
            reasons=step.reasons,
            held_blocks=self._held_blocks() if self.record_held_blocks else {},
        )
        self._finished_request_ids = set()
        self._step_count += 1
        requests = self.requests
        for request_id, num_tokens in step.num_scheduled.items():
            request = requests[request_id]
            num_computed = request.num_computed_tokens = request.num_computed_tokens + num_tokens
            if num_computed >= len(request.all_token_ids) + request.num_output_placeholders:
                request.num_output_placeholders += 1
            if self._tells_scheduled:
                self.policy.on_scheduled(request, num_tokens)
        return output

    def _held_blocks(self) -> dict[str, HeldBlocks]:
        tables = ((request, self.kv_cache.block_ids(request.request_id)) for request in self.requests.values())
        return {
            request.request_id: HeldBlocks(block_ids=block_ids, num_computed_tokens=request.num_computed_tokens)
            for request, block_ids in tables
            if any(block_ids)
        }

    def _new_request_data(self, request: Request) -> NewRequestData:
        return NewRequestData(
            request_id=request.request_id,
            prompt_token_ids=request.all_token_ids[: request.num_prompt_tokens],
            sampling_params=request.sampling_params,
            bad_words_token_ids=request.bad_words_token_ids,
            block_ids=self.kv_cache.block_ids(request.request_id),
            num_computed_tokens=request.num_computed_tokens,
            stop_token_ids=request.stop_token_ids,
        )

    def _state(self, step: _Step) -> SchedulerState:
        return SchedulerState(
            now=step.now,
            token_budget=step.budget,
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            num_free_blocks=self.kv_cache.num_free_blocks,
            num_usable_blocks=self.kv_cache.num_usable_blocks,
        )

    # -- results -------------------------------------------------------------------------------------------------------

    def update_from_output(self, scheduled: SchedulerOutput, computed: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """Append the sampled tokens, end what is done, free its blocks. Requests that ended while the step ran are skipped."""
        outputs, self._late_outputs = self._late_outputs, []
        requests, errors, drafts_of = self.requests, computed.errors, scheduled.scheduled_spec_decode_tokens
        for request_id, token_ids in zip(computed.request_ids, computed.sampled_token_ids, strict=True):
            request = requests.get(request_id)
            if request is None:
                continue
            if request.num_stale_outputs:
                request.num_stale_outputs -= 1
                continue
            if errors and (error := errors.get(request_id)) is not None:
                outputs.append(self._fail(request, error))
                continue
            if drafts_of and (drafts := drafts_of.get(request_id)):
                request.num_computed_tokens -= len(drafts) + 1 - len(token_ids)
            if token_ids:
                outputs.append(self._append(request, token_ids, computed))
        return outputs

    def _append(self, request: Request, token_ids: list[int], computed: ModelRunnerOutput) -> EngineCoreOutput:
        """The request may have been preempted since the step was scheduled; its token counts all the same."""
        status = request.status
        request.num_output_placeholders -= 1
        stopped = False
        for count, token_id in enumerate(token_ids, start=1):
            request.all_token_ids.append(token_id)
            if check_stop(request, self.limits.max_model_len):
                token_ids = token_ids[:count]
                stopped = True
                break
        output = EngineCoreOutput(request_id=request.request_id, new_token_ids=token_ids, num_cached_tokens=request.num_cached_tokens)
        if computed.logprobs and (logprobs := computed.logprobs.get(request.request_id)):
            output.new_logprobs = logprobs[: len(token_ids)]
        if computed.prompt_logprobs:
            output.new_prompt_logprobs = computed.prompt_logprobs.get(request.request_id)
        if stopped:
            self._leave_queue(request, status)
            if request.is_session:
                output.turn_ended = True
                self._end_turn(request)
            else:
                self._release(request)
            output.finish_reason = request.finish_reason
            output.stop_reason = request.stop_reason
        return output

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

    def _fail(self, request: Request, error: str) -> EngineCoreOutput:
        """End a request whose logits were unusable; its blocks must not be found as a prefix by others."""
        self.kv_cache.evict_blocks(block for group in self.kv_cache.block_ids(request.request_id) for block in group)
        self.finish_requests([request.request_id], RequestStatus.FINISHED_ERROR)
        return EngineCoreOutput(request_id=request.request_id, new_token_ids=[], finish_reason=request.finish_reason, error=error)

    def fail_step(self, scheduled: SchedulerOutput) -> None:
        """The step's forward raised: its requests end, and the whole prefix cache is forgotten.

        Blocks that the step was to write are findable by now, some perhaps of requests that were aborted while it ran.
        """
        for request_id in scheduled.num_scheduled_tokens:
            if (request := self.requests.get(request_id)) is not None:
                self._fail(request, "the step failed")
        self.kv_cache.evict_blocks(range(NULL_BLOCK_ID + 1, NULL_BLOCK_ID + 1 + self.kv_cache.num_usable_blocks))

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


def _cached_request_data(step: _Step) -> CachedRequestData:
    requests, gained = step.cached, step.new_block_ids
    return CachedRequestData(
        request_ids=[request.request_id for request in requests],
        resumed_request_ids=step.resumed,
        new_block_ids=[gained.get(request.request_id) for request in requests],
        num_computed_tokens=[request.num_computed_tokens for request in requests],
        num_output_tokens=[len(request.all_token_ids) - request.num_prompt_tokens for request in requests],
    )


def _overrides(policy: SchedulerPolicy, method: str) -> bool:
    return getattr(type(policy), method) is not getattr(SchedulerPolicy, method)
