"""The engine core: requests in, one step at a time, tokens out. It knows ids, never text."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from slotwise.engine.core_request import EngineCoreRequest
from slotwise.engine.grammar_masks import GrammarMasks
from slotwise.engine.outputs import EngineCoreOutput
from slotwise.engine.request import Request, RequestStatus
from slotwise.engine.scheduler import Scheduler
from slotwise.engine.scheduler_output import ModelRunnerOutput, SchedulerOutput
from slotwise.engine.speculation_stats import SpeculationStats
from slotwise.engine.structured_outputs import StructuredOutputs
from slotwise.errors import QueueFullError
from slotwise.interfaces.observer import RequestFinished, StepEvent
from slotwise.plugin.observers import ObserverHub


class ModelExecutor(Protocol):
    """Where the model runs."""

    def execute_model(self, scheduled: SchedulerOutput) -> None:
        """Start the forward of one step."""

    def sample_tokens(self, masks: GrammarMasks | None = None) -> ModelRunnerOutput:
        """Finish it: sample and return. masks: of requests with a grammar."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineStats:
    """What an engine core is busy with."""

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_usable_blocks: int
    speculation: SpeculationStats = field(default_factory=SpeculationStats)
    """Drafts proposed and accepted so far."""

    @property
    def is_idle(self) -> bool:
        """No request is left and no block is held."""
        return not self.num_running and not self.num_waiting and self.num_free_blocks == self.num_usable_blocks


class StepTimes:
    """Milliseconds spent on the parts of one step, for observers."""

    def __init__(self) -> None:
        self.schedule_ms = self.execute_ms = self.sample_ms = self.update_ms = 0.0

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """`part`: `schedule`, `execute`, `sample` or `update`."""
        start = time.perf_counter()
        yield
        setattr(self, f"{part}_ms", (time.perf_counter() - start) * 1e3)


class EngineCore:
    """Scheduler and executor of one engine. Not thread-safe: one thread steps it."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        executor: ModelExecutor,
        observers: ObserverHub,
        max_num_waiting: int | None = None,
        grammars: StructuredOutputs | None = None,
    ) -> None:
        """grammars: None = requests that need one are refused before they come here."""
        self.scheduler = scheduler
        self.executor = executor
        self.observers = observers
        self.grammars = grammars
        self._max_num_waiting = max_num_waiting
        scheduler.keep_finished = scheduler.record_reasons = observers.active
        self._num_arrivals = 0
        self._num_accepted_told = 0

    def step(self) -> list[EngineCoreOutput]:
        """Schedule, execute, sample, update. If the model raises, the step's requests end, what it was to write is forgotten, and the
        exception goes on to the caller."""
        times = StepTimes()
        scheduled = self.schedule(times)
        try:
            computed = self.execute(scheduled, times)
        except BaseException:
            self.scheduler.fail_step(scheduled)
            raise
        return self.update(scheduled, computed, times)

    def schedule(self, times: StepTimes) -> SchedulerOutput:
        """Decide what the step computes."""
        with times.measure("schedule"):
            if self.grammars is not None:
                self._admit_compiled(self.grammars)
            return self.scheduler.schedule()

    def execute(self, scheduled: SchedulerOutput, times: StepTimes) -> ModelRunnerOutput:
        """Compute it and sample; touches nothing but the executor and the grammars of the step's requests."""
        masks = None if self.grammars is None else self.grammars.begin_masks(scheduled)
        with times.measure("execute"):
            self.executor.execute_model(scheduled)
        with times.measure("sample"):
            computed = self.executor.sample_tokens(None if masks is None else masks.result())
        if self.grammars is not None:
            self.grammars.advance(computed)
        return computed

    def update(self, scheduled: SchedulerOutput, computed: ModelRunnerOutput, times: StepTimes) -> list[EngineCoreOutput]:
        """Append the tokens, end and free what is done, tell the observers."""
        with times.measure("update"):
            outputs = self.scheduler.update_from_output(scheduled, computed)
        if self.observers.active:
            self._tell_observers(scheduled, outputs, times)
        return outputs

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_requests or (self.grammars is not None and self.grammars.is_compiling)

    def add_request(self, request: EngineCoreRequest) -> None:
        """Let a request wait for its turn. Raises QueueFullError at the configured limit."""
        if self._max_num_waiting is not None and self.scheduler.num_waiting >= self._max_num_waiting:
            raise QueueFullError(
                f"{self.scheduler.num_waiting} requests are waiting and scheduler.max_num_waiting is {self._max_num_waiting}; "
                "try again later"
            )
        status = RequestStatus.WAITING
        if request.grammar is not None:
            assert self.grammars is not None  # the input processor refuses it otherwise
            self.grammars.add(request.request_id, request.grammar, request.stop_token_ids)
            status = RequestStatus.WAITING_FOR_GRAMMAR
        self.scheduler.add_request(
            Request(
                request_id=request.request_id,
                prompt_token_ids=request.prompt_token_ids,
                sampling_params=request.sampling_params,
                eos_token_ids=request.eos_token_ids,
                arrival_time=request.arrival_time,
                arrival_index=self._num_arrivals,
                priority=request.priority,
                client_id=request.client_id,
                extra_keys=request.extra_keys,
                bad_words_token_ids=request.bad_words_token_ids,
                pooling=request.pooling,
                is_session=request.is_session,
                status=status,
            )
        )
        self._num_arrivals += 1

    def extend_session(self, request_id: str, token_ids: Sequence[int] | None) -> None:
        """More input for a session, None for the end of its input; ended ones are ignored."""
        self.scheduler.extend_session(request_id, token_ids)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """End requests at once; unknown and ended ones are ignored."""
        self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)

    def _admit_compiled(self, grammars: StructuredOutputs) -> None:
        """Requests whose grammar is there may run, those whose grammar cannot be made end with the compiler's words."""
        if not self.scheduler.has_requests:
            grammars.wait()
        for request_id, error in grammars.take_compiled():
            if error is None:
                self.scheduler.unblock(request_id)
            else:
                self.scheduler.reject(request_id, error)

    def stats(self) -> EngineStats:
        """Cheap; the numbers of this moment."""
        return EngineStats(
            num_running=len(self.scheduler.running),
            num_waiting=self.scheduler.num_waiting,
            num_free_blocks=self.scheduler.kv_cache.num_free_blocks,
            num_usable_blocks=self.scheduler.kv_cache.num_usable_blocks,
            speculation=self.scheduler.speculation,
        )

    def close(self) -> None:
        """Abort what is left and tell the observers that the engine stopped."""
        self.abort_all()
        if self.grammars is not None:
            self.grammars.close()
        self.observers.engine_stopped()

    def abort_all(self) -> None:
        self.abort_requests(list(self.scheduler.requests))

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False while requests hold blocks."""
        return self.scheduler.reset_prefix_cache()

    def _tell_observers(self, scheduled: SchedulerOutput, outputs: list[EngineCoreOutput], times: StepTimes) -> None:
        kv_cache = self.scheduler.kv_cache
        num_accepted = self.scheduler.speculation.num_accepted_tokens
        self.observers.step_finished(
            StepEvent(
                scheduler_output=scheduled,
                schedule_ms=times.schedule_ms,
                execute_ms=times.execute_ms,
                sample_ms=times.sample_ms,
                update_ms=times.update_ms,
                num_running=len(self.scheduler.running),
                num_waiting=self.scheduler.num_waiting,
                num_kv_blocks=kv_cache.num_usable_blocks,
                num_free_kv_blocks=kv_cache.num_free_blocks,
                num_generated_tokens=sum(len(output.new_token_ids) for output in outputs),
                num_accepted_draft_tokens=num_accepted - self._num_accepted_told,
                kv_events=tuple(kv_cache.take_events()),
            )
        )
        self._num_accepted_told = num_accepted
        for request in self.scheduler.take_finished():
            assert request.finish_reason is not None
            self.observers.request_finished(
                RequestFinished(
                    request_id=request.request_id,
                    reason=request.finish_reason,
                    num_prompt_tokens=request.num_prompt_tokens,
                    num_output_tokens=request.num_output_tokens,
                    num_cached_tokens=max(request.num_cached_tokens, 0),
                    num_preemptions=request.num_preemptions,
                )
            )
