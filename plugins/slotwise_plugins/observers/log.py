"""The `log` observer: one line of the standard `logging` per so many engine steps.

What this file does not know: where the log goes; requests by name.
"""

from __future__ import annotations

import logging

from slotwise.interfaces.observer import EngineInfo, Observer, ObserverSetup, RequestFinished, StepEvent
from slotwise.plugin.hookspecs import hookimpl
from slotwise_plugins.observers.log_options import LogOptions

logger = logging.getLogger(__name__)


class LogObserver(Observer):
    """Sums up steps and writes the sum every `interval_steps`, and what is left when the engine stops."""

    def __init__(self, setup: ObserverSetup) -> None:
        super().__init__(setup)
        self._interval = setup.options.interval_steps if isinstance(setup.options, LogOptions) else LogOptions().interval_steps
        self._last: StepEvent | None = None
        self._clear()

    def _clear(self) -> None:
        self._num_steps = 0
        self._num_scheduled = 0
        self._num_generated = 0
        self._num_finished = 0
        self._num_drafts = self._num_accepted = 0
        self._duration_ms = 0.0

    @hookimpl
    def slotwise_engine_started(self, info: EngineInfo) -> None:
        """One line of its own: model and components."""
        components = ", ".join(f"{item.slot}{'.' + item.part if item.part else ''}={item.name}" for item in info.components)
        logger.info("engine started: %s on %s in %s, %d KV blocks; %s", info.model, info.device, info.dtype, info.num_blocks, components)

    @hookimpl
    def slotwise_step_finished(self, event: StepEvent) -> None:
        """Adds the step to the sum."""
        self._last = event
        self._num_steps += 1
        self._num_scheduled += event.scheduler_output.total_num_scheduled_tokens
        self._num_generated += event.num_generated_tokens
        self._num_drafts += event.num_draft_tokens
        self._num_accepted += event.num_accepted_draft_tokens
        self._duration_ms += event.total_ms
        if self._num_steps >= self._interval:
            self._write(event)

    @hookimpl
    def slotwise_request_finished(self, event: RequestFinished) -> None:
        """Counts it."""
        self._num_finished += 1

    @hookimpl
    def slotwise_engine_stopped(self) -> None:
        """Writes what has not been written."""
        if self._last is not None and (self._num_steps or self._num_finished):
            self._write(self._last)

    def _write(self, event: StepEvent) -> None:
        per_second = self._num_scheduled / self._duration_ms * 1000 if self._duration_ms else 0.0
        logger.info(
            "step %d: %d running, %d waiting, KV %.1f %%; last %d steps: %.1f ms each,"
            " %d tokens computed (%.0f/s), %d generated, %d requests ended%s",
            event.step,
            event.num_running,
            event.num_waiting,
            event.kv_usage * 100,
            self._num_steps,
            self._duration_ms / self._num_steps if self._num_steps else 0.0,
            self._num_scheduled,
            per_second,
            self._num_generated,
            self._num_finished,
            f", {self._num_accepted} of {self._num_drafts} drafts accepted" if self._num_drafts else "",
        )
        self._clear()
