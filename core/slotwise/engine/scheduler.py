"""The scheduler's mechanism: one token budget, chunked prefill, prefix hits, preemption by recomputation.

There is no prefill or decode phase: each step moves `num_computed_tokens` of its requests towards the tokens they have. Which
waiting request is next, who is preempted and how long a chunk is are the policy's answers; the KV manager says what fits.

What this file does not know: text, tensors, models.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from slotwise.engine.outputs import EngineCoreOutput
from slotwise.engine.request import Request, RequestStatus
from slotwise.engine.request_table import RequestTable, overrides
from slotwise.engine.schedule_step import StepInProgress
from slotwise.engine.scheduler_limits import PauseState, SchedulerLimits
from slotwise.engine.scheduler_output import HeldBlocks, ModelRunnerOutput, NewRequestData, SchedulerOutput
from slotwise.engine.speculation_stats import SpeculationStats
from slotwise.engine.stop_check import check_stop
from slotwise.interfaces.kv_cache import NULL_BLOCK_ID, Allocation, KVCacheManager
from slotwise.interfaces.scheduler import SchedulerPolicy, SchedulerState, Victim


class Scheduler(RequestTable):
    """Decides steps and takes in their results. Not thread-safe."""

    def __init__(
        self, limits: SchedulerLimits, policy: SchedulerPolicy, kv_cache: KVCacheManager, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(limits, policy, kv_cache, clock=clock)
        self.pause_state = PauseState.UNPAUSED
        self.record_reasons = False
        """Somebody reads `SchedulerOutput.reasons`: ask the policy why it orders as it does."""
        self.record_held_blocks = False
        """The KV sanitizer reads `SchedulerOutput.held_blocks`; filling it costs as much as the contexts are long."""
        self.count_common_prefix = False
        """A backend can use a prefix that all rows share (cascade); finding it costs as much as it is long."""
        self.speculation = SpeculationStats()
        self._step_count = 0
        self._asks_admission = overrides(policy, "admit")
        self._asks_chunk = overrides(policy, "choose_chunk") and limits.enable_chunked_prefill
        self._asks_displacement = overrides(policy, "displace")
        self._tells_scheduled = overrides(policy, "on_scheduled")

    # -- one step ------------------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Decide what the next step computes. Running requests first, in admission order, then waiting ones in the policy's."""
        budget = 0 if self.pause_state is PauseState.PAUSED_ALL else self.limits.max_num_scheduled_tokens
        step = StepInProgress(budget=budget, now=self._clock())
        self._schedule_running(step)
        if not step.preempted and self.pause_state is PauseState.UNPAUSED:
            self._schedule_waiting(step)
        return self._build_output(step)

    def _schedule_running(self, step: StepInProgress) -> None:
        running, allocate, lookahead = self.running, self.kv_cache.allocate, self.limits.num_lookahead_tokens
        position = 0
        while position < len(running) and step.budget > 0:
            request = running[position]
            num_tokens = self._num_tokens_to_schedule(request, request.num_computed_tokens, step)
            if num_tokens == 0 or (request.num_output_placeholders and self._ends_in_flight(request)):
                position += 1
                continue
            allocation = allocate(request, num_tokens, num_lookahead_tokens=lookahead)
            while allocation is None:
                position = self._preempt_for(request, position, step)
                if request.status is RequestStatus.PREEMPTED:
                    break
                allocation = allocate(request, num_tokens, num_lookahead_tokens=lookahead)
            if allocation is None:
                continue  # `position` already points at the request after the one that left
            self._commit(request, num_tokens, allocation, step)
            step.cached.append(request)
            position += 1

    def _schedule_waiting(self, step: StepInProgress) -> None:
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
                request,
                num_tokens,
                cached_prefix=prefix,
                num_lookahead_tokens=self.limits.num_lookahead_tokens,
                reserve_whole_prompt=self.limits.reserve_whole_prompt,
            )
            if allocation is None:
                if self._displace_for(request, step):
                    continue
                break
            self.waiting.remove(request)
            self._admit(request, prefix.num_tokens, step)
            self._commit(request, num_tokens, allocation, step)

    def _is_admitted(self, request: Request, step: StepInProgress) -> bool:
        decision = self.policy.admit(request, self._state(step))
        step.note(request, decision.reason)
        return decision.allowed

    def _displace_for(self, request: Request, step: StepInProgress) -> bool:
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

    def _num_tokens_to_schedule(self, request: Request, num_computed: int, step: StepInProgress) -> int:
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

    def _commit(self, request: Request, num_tokens: int, allocation: Allocation, step: StepInProgress) -> None:
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

    def _admit(self, request: Request, num_cached_tokens: int, step: StepInProgress) -> None:
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

    def _preempt_for(self, blocked: Request, position: int, step: StepInProgress) -> int:
        """Preempt the policy's victim so that `blocked`, at `position`, may get its blocks. Returns `blocked`'s new position."""
        victim = self.policy.choose_victim(self.running, blocked)
        victim_position = self._preempt_in_step(victim, step)
        return position - 1 if victim_position < position else position

    def _preempt_in_step(self, victim: Victim, step: StepInProgress) -> int:
        """Returns where the victim stood among the running requests."""
        request = self.requests[victim.request.request_id]
        position = self.running.index(request)
        if request.request_id in step.num_scheduled:
            self._undo(request, step)
        step.preempted.add(request.request_id)
        step.note(request, victim.reason)
        self._preempt(request, step.now)
        return position

    def _undo(self, request: Request, step: StepInProgress) -> None:
        """Take a request that was already scheduled out of this step, as if it had not been looked at."""
        step.budget += step.num_scheduled.pop(request.request_id)
        step.new_block_ids.pop(request.request_id, None)
        step.block_copies.pop(request.request_id, None)
        step.drafts.pop(request.request_id, None)
        step.cached.remove(request)

    # -- the step's record ---------------------------------------------------------------------------------------------

    def _build_output(self, step: StepInProgress) -> SchedulerOutput:
        total = self.limits.max_num_scheduled_tokens - step.budget if step.num_scheduled else 0
        assert step.budget >= 0, "scheduled more tokens than the budget"
        assert len(self.running) <= self.limits.max_num_seqs, "more requests run than max_num_seqs"
        output = SchedulerOutput(
            step=self._step_count,
            scheduled_new_requests=[self._new_request_data(request) for request in step.new],
            scheduled_cached_requests=step.cached_request_data(),
            num_scheduled_tokens=step.num_scheduled,
            total_num_scheduled_tokens=total,
            scheduled_spec_decode_tokens=step.drafts,
            finished_request_ids=self._finished_request_ids,
            preempted_request_ids=step.preempted,
            num_common_prefix_blocks=self._num_common_prefix_blocks() if self.count_common_prefix else (),
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

    def _num_common_prefix_blocks(self) -> tuple[int, ...]:
        return self.kv_cache.num_common_prefix_blocks(request.request_id for request in self.running)

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
            pooling=request.pooling,
        )

    def _state(self, step: StepInProgress) -> SchedulerState:
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
                self.speculation.note(len(drafts), len(token_ids) - 1)
            if token_ids:
                outputs.append(self._append(request, token_ids, computed))
            elif request_id in computed.completed_prompts:
                outputs.append(self._end_prompt(request, computed))
        for request_id, drafts in computed.draft_token_ids.items():
            if (request := requests.get(request_id)) is not None and request.status is RequestStatus.RUNNING:
                request.spec_token_ids = drafts
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

    def _end_prompt(self, request: Request, computed: ModelRunnerOutput) -> EngineCoreOutput:
        """End a request that was to generate nothing; its prompt is computed."""
        request.num_output_placeholders -= 1
        self._leave_queue(request, request.status)
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED if request.pooling is None else RequestStatus.FINISHED_STOPPED
        self._release(request)
        return EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=[],
            new_prompt_logprobs=computed.prompt_logprobs.get(request.request_id),
            embedding=computed.embeddings.get(request.request_id),
            finish_reason=request.finish_reason,
            num_cached_tokens=request.num_cached_tokens,
        )

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
