"""The start-up ledger: where the time between a process's start and its first token goes.

Parts of the start name themselves with `stage`; nothing is kept unless somebody opened a ledger. A stage's seconds are its own, without
those of the stages inside it.

What this file does not know: what the stages do, how they are shown.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(slots=True)
class StartupLedger:
    """Seconds by stage, in the order in which stages first began."""

    stages: dict[str, float] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _since: float = 0.0

    def add(self, name: str, seconds: float) -> None:
        """What somebody else measured."""
        self.stages[name] = self.stages.get(name, 0.0) + seconds

    @property
    def total(self) -> float:
        """Seconds of all stages."""
        return sum(self.stages.values())

    def _switch(self) -> None:
        """Book the time since the last switch on the innermost stage."""
        now = time.perf_counter()
        if self._open:
            self.add(self._open[-1], now - self._since)
        self._since = now

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Book what happens inside on `name`."""
        self._switch()
        self._open.append(name)
        self.stages.setdefault(name, 0.0)
        try:
            yield
        finally:
            self._switch()
            self._open.pop()


_ledger: ContextVar[StartupLedger | None] = ContextVar("startup_ledger", default=None)


@contextmanager
def keep_ledger() -> Iterator[StartupLedger]:
    """Stages inside are booked."""
    ledger = StartupLedger()
    token = _ledger.set(ledger)
    try:
        yield ledger
    finally:
        _ledger.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """A named part of the start; costs nothing without a ledger."""
    ledger = _ledger.get()
    if ledger is None:
        yield
        return
    with ledger.stage(name):
        yield


@contextmanager
def collection_paused() -> Iterator[None]:
    """No garbage collection inside: importing torch and transformers makes 600,000 objects that stay, and looking through them again and
    again takes a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def process_age() -> float | None:
    """Seconds since this process was started, to a hundredth; None where the system does not tell."""
    try:
        with open("/proc/self/stat", encoding="utf-8") as file:
            started = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, AttributeError):
        return None
