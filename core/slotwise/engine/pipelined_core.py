"""Async scheduling: the next step is scheduled while the model computes the last one.

One thread executes steps in order; at most two are under way. A token that is not known yet is a placeholder in the scheduler's
counts; the runner, which executes in order, always knows it in time. What differs from the plain core is when things happen, never
which tokens come out.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from slotwise.engine.engine_core import EngineCore, StepTimes
from slotwise.engine.outputs import EngineCoreOutput
from slotwise.engine.scheduler_output import ModelRunnerOutput, SchedulerOutput

MAX_STEPS_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class _StepInFlight:
    scheduled: SchedulerOutput
    result: Future[ModelRunnerOutput]
    times: StepTimes


class PipelinedEngineCore(EngineCore):
    """An engine core whose `step` prefers starting another step over waiting for a result."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slotwise-model")
        self._in_flight: deque[_StepInFlight] = deque()

    @property
    def has_work(self) -> bool:
        return bool(self._in_flight) or super().has_work

    def step(self) -> list[EngineCoreOutput]:
        """Start a step if there is room for one; once two are under way, or nothing is left to start, wait for the older one's tokens."""
        if super().has_work:
            times = StepTimes()
            scheduled = self.schedule(times)
            self._in_flight.append(_StepInFlight(scheduled, self._worker.submit(self.execute, scheduled, times), times))
            if len(self._in_flight) < MAX_STEPS_IN_FLIGHT:
                return []
        return self._finish_oldest()

    def _finish_oldest(self) -> list[EngineCoreOutput]:
        oldest = self._in_flight[0]
        try:
            computed = oldest.result.result()
        except BaseException:
            self._fail_in_flight()
            raise
        self._in_flight.popleft()
        return self.update(oldest.scheduled, computed, oldest.times)

    def _fail_in_flight(self) -> None:
        """A step raised: it and the one behind it, which builds on it, are lost."""
        for step in self._in_flight:
            if not step.result.cancel():
                wait([step.result])
            self.scheduler.fail_step(step.scheduled)
        self._in_flight.clear()

    def close(self) -> None:
        self._worker.shutdown()
        self._in_flight.clear()
        super().close()
