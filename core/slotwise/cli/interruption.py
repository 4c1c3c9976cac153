"""Ctrl-C while the engine computes: a wish that is granted between two steps, so that a step is never torn apart.

A second Ctrl-C does not wait. What this file does not know: what is being interrupted.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interruption:
    """Context manager; `is_wanted` becomes true at the first Ctrl-C inside it, the second raises KeyboardInterrupt.

    Off the main thread, and where the process was started with SIGINT ignored, it changes nothing.
    """

    def __init__(self) -> None:
        self.is_wanted = False
        self._previous: Any = None
        self._installed = False

    def __enter__(self) -> Interruption:
        previous = signal.getsignal(signal.SIGINT)
        on_main_thread = threading.current_thread() is threading.main_thread()
        if on_main_thread and previous is not None and previous is not signal.SIG_IGN:
            self._previous = signal.signal(signal.SIGINT, self._want)
            self._installed = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._previous)
            self._installed = False

    def _want(self, number: int, frame: FrameType | None) -> None:
        if self.is_wanted:
            raise KeyboardInterrupt
        self.is_wanted = True
