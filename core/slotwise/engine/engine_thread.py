"""Runs an engine core in a thread of its own, so that an event loop stays free while the model computes.

Requests and aborts go in through an inbox that is emptied between steps; each step's outputs, or the error that ended the core, go out
through callbacks made from this thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slotwise.engine.core_request import EngineCoreRequest
from slotwise.engine.engine_core import EngineCore
from slotwise.engine.outputs import EngineCoreOutput
from slotwise.errors import EngineDeadError


@dataclass(frozen=True, slots=True)
class _Stop:
    """Last message: leave the loop after aborting what is left."""


_Message = EngineCoreRequest | tuple[str, ...] | Callable[[EngineCore], None] | _Stop


class EngineThread:
    """Owner of the core: nobody else may touch it after `start`.

    `on_outputs(outputs)` is called after each step that gave any, `on_refused(request_id, error)` when a request could not be added,
    `on_death(error)` once if a step raises; the thread then ends.
    """

    def __init__(
        self,
        core: EngineCore,
        *,
        on_outputs: Callable[[Sequence[EngineCoreOutput]], None],
        on_refused: Callable[[str, Exception], None],
        on_death: Callable[[BaseException], None],
    ) -> None:
        self._core = core
        self._on_outputs = on_outputs
        self._on_refused = on_refused
        self._on_death = on_death
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="slotwise-engine", daemon=True)
        self.error: BaseException | None = None
        """What ended the core."""

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and self.error is None

    def add_request(self, request: EngineCoreRequest) -> None:
        """Raises EngineDeadError if the core has ended."""
        self._check_alive()
        self._inbox.put(request)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Does nothing if the core has ended."""
        self._inbox.put(tuple(request_ids))

    def call(self, function: Callable[[EngineCore], None]) -> None:
        """Run a function on the core between two steps. Raises EngineDeadError if the core has ended."""
        self._check_alive()
        self._inbox.put(function)

    def stop(self) -> None:
        """Abort what is left and end the thread; returns when it has ended."""
        self._inbox.put(_Stop())
        if self._thread.is_alive():
            self._thread.join()

    def _check_alive(self) -> None:
        if not self.is_alive:
            raise EngineDeadError(f"The engine has ended ({self.error or 'it was stopped'}); make a new one.") from self.error

    def _run(self) -> None:
        try:
            while self._take_messages():
                if self._core.has_work:
                    outputs = self._core.step()
                    if outputs:
                        self._on_outputs(outputs)
        except BaseException as error:
            self.error = error
            self._core.abort_all()
            self._on_death(error)
        finally:
            self._core.close()

    def _take_messages(self) -> bool:
        """Empty the inbox; wait for a message if there is nothing to compute. False = stop."""
        must_wait = not self._core.has_work
        while must_wait or not self._inbox.empty():
            message = self._inbox.get()
            must_wait = False
            if isinstance(message, _Stop):
                self._core.abort_all()
                return False
            self._handle(message)
        return True

    def _handle(self, message: EngineCoreRequest | tuple[str, ...] | Callable[[EngineCore], None]) -> None:
        if isinstance(message, EngineCoreRequest):
            try:
                self._core.add_request(message)
            except Exception as error:
                self._on_refused(message.request_id, error)
        elif isinstance(message, tuple):
            self._core.abort_requests(message)
        else:
            message(self._core)
