"""Compiles grammars off the engine's thread, each once, within a limit of time.

A compilation that takes too long fails for its requests; its thread cannot be stopped, so it is left alone, and another takes its seat.
Once too many are left alone, no new grammar is taken until some of them end. What this file does not know: requests, masks.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from slotwise.interfaces.grammar import CompiledGrammar, GrammarBackend, GrammarError, GrammarSpec

MAX_ABANDONED: Final = 4
"""Threads left alone before new grammars are refused."""
MAX_CACHED: Final = 256
"""Grammars kept."""


class GrammarCompiler:
    """Thread-safe."""

    poll_seconds: Final = 0.005
    """How often somebody who waits should look for compilations that take too long."""

    def __init__(
        self,
        make_backend: Callable[[], GrammarBackend],
        *,
        num_threads: int = 2,
        max_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """make_backend: called with the first grammar, on its thread; an engine that is never asked for one pays nothing."""
        self._make_backend = make_backend
        self._backend: GrammarBackend | None = None
        self._making = threading.Lock()
        self._num_threads = num_threads
        self._max_seconds = max_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[GrammarSpec, Future[CompiledGrammar]] = OrderedDict()
        self._queue: deque[tuple[GrammarSpec, Future[CompiledGrammar]]] = deque()
        self._running: dict[Future[CompiledGrammar], float] = {}
        """With the time each began."""
        self._num_abandoned = 0

    def submit(self, spec: GrammarSpec) -> Future[CompiledGrammar]:
        """The grammar, now or later; equal specs share one compilation. The future's exception is a GrammarError."""
        with self._lock:
            known = self._known.get(spec)
            if known is not None:
                self._known.move_to_end(spec)
                return known
            future: Future[CompiledGrammar] = Future()
            if self._num_abandoned >= MAX_ABANDONED:
                future.set_exception(
                    GrammarError(f"{self._num_abandoned} grammars that take too long still occupy the compiler; try again later")
                )
                return future
            self._known[spec] = future
            while len(self._known) > MAX_CACHED:
                self._known.popitem(last=False)
            self._queue.append((spec, future))
            self._start_next()
        return future

    def expire(self) -> None:
        """Fail compilations that take longer than `max_seconds`; somebody must call it now and then."""
        with self._lock:
            now = self._clock()
            late = [future for future, began in self._running.items() if now - began > self._max_seconds]
            for future in late:
                del self._running[future]
                self._num_abandoned += 1
                self._start_next()
        for future in late:
            future.set_exception(GrammarError(f"the grammar takes longer than {self._max_seconds:g} s to compile; simplify it"))

    def _start_next(self) -> None:
        """Under the lock."""
        while self._queue and len(self._running) < self._num_threads:
            spec, future = self._queue.popleft()
            self._running[future] = self._clock()
            threading.Thread(target=self._compile, args=(spec, future), name="slotwise-grammar-compile", daemon=True).start()

    def _ready_backend(self) -> GrammarBackend:
        with self._making:
            if self._backend is None:
                self._backend = self._make_backend()
            return self._backend

    def _compile(self, spec: GrammarSpec, future: Future[CompiledGrammar]) -> None:
        grammar: CompiledGrammar | None = None
        try:
            grammar = self._ready_backend().compile(spec)
            failure: BaseException | None = None
        except GrammarError as error:
            failure = error
        except BaseException as error:
            failure = GrammarError(f"the grammar compiler failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
        with self._lock:
            is_wanted = self._running.pop(future, None) is not None
            if not is_wanted:
                self._num_abandoned -= 1
            elif failure is not None and self._known.get(spec) is future:
                del self._known[spec]
            self._start_next()
        if is_wanted and grammar is not None:
            future.set_result(grammar)
        elif is_wanted and failure is not None:
            future.set_exception(failure)
