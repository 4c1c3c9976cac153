"""Clocks of a measurement: CPU time of this thread, beside wall time that tells whether the thread had a core to itself.

What this file does not know: what is measured.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

MAX_LOST_SHARE = 0.10
"""More wall time than this spent off the core makes a measurement doubtful."""


class StepClock:
    """Splits a step into named parts. One thread; `start`, then `lap` once per part."""

    def __init__(self) -> None:
        self.cpu_ns: dict[str, int] = {}
        self._cpu_mark = 0
        self._wall_mark = 0
        self._cpu_total = 0
        self._wall_total = 0

    def start(self) -> None:
        self.cpu_ns = {}
        self._wall_mark = time.perf_counter_ns()
        self._cpu_mark = time.thread_time_ns()

    def lap(self, part: str) -> None:
        """All since the last mark belongs to `part`."""
        now = time.thread_time_ns()
        self.cpu_ns[part] = self.cpu_ns.get(part, 0) + now - self._cpu_mark
        self._cpu_total += now - self._cpu_mark
        wall_now = time.perf_counter_ns()
        self._wall_total += wall_now - self._wall_mark
        self._wall_mark = wall_now
        self._cpu_mark = time.thread_time_ns()

    @property
    def lost_share(self) -> float:
        """Share of the laps' wall time in which the thread did not run: other processes had the core. 0 before the first lap."""
        return max(0.0, 1 - self._cpu_total / self._wall_total) if self._wall_total else 0.0


@contextmanager
def garbage_collection_off() -> Iterator[None]:
    """Collects once, then not until the end; a collection costs what other objects are alive, not what is measured."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def doubt(lost_share: float) -> str | None:
    """What to tell whoever reads the figures; None if they can be trusted."""
    if lost_share <= MAX_LOST_SHARE:
        return None
    return (
        f"Other processes took {lost_share:.0%} of the measured time from this one. Shared caches and cores inflate CPU times too: "
        "compare only figures of one run, and measure again on a quiet machine."
    )
