"""Small rigs, and a counter of function calls: what a step costs, without a clock."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from slotwise_contrib.bench.components import MeasuredComponents
from slotwise_contrib.bench.engine_rig import EngineRig, RigSettings

MakeRig = Callable[..., EngineRig]
BLOCK_SIZE = 4


class CallCounter:
    """Functions entered while counting, by qualified name; those of C by their own."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self.calls.total()

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.calls[frame.f_code.co_qualname] += 1
        elif event == "c_call" and argument is not sys.setprofile:
            self.calls[argument.__qualname__] += 1


@pytest.fixture
def make_rig() -> MakeRig:
    def make(num_running: int = 8, context_len: int = 16, *, policy: str = "fcfs", kv_cache: str = "paged", **settings: Any) -> EngineRig:
        return EngineRig(
            RigSettings(num_running=num_running, context_len=context_len, num_steps=100, **{"block_size": BLOCK_SIZE, **settings}),
            MeasuredComponents(policy=policy, kv_cache=kv_cache),
        )

    return make


@pytest.fixture
def count_steps() -> Callable[[EngineRig, int], CallCounter]:
    """Calls of schedule, update and output processing in that many steps; runner and text are left out."""

    def count(rig: EngineRig, num_steps: int) -> CallCounter:
        counter = CallCounter()
        for _ in range(num_steps):
            with counter.counting():
                scheduled = rig.scheduler.schedule()
            rig.runner.execute_model(scheduled)
            computed = rig.runner.sample_tokens()
            with counter.counting():
                rig.outputs.process(rig.scheduler.update_from_output(scheduled, computed))
        return counter

    return count
