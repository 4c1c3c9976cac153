"""The clock's arithmetic, on a time of the test's own, and the state of the garbage collector."""

from __future__ import annotations

import gc

import pytest

from slotwise_contrib.bench import step_clock
from slotwise_contrib.bench.step_clock import StepClock, doubt, garbage_collection_off


class FakeTime:
    """CPU time passes at half the speed of wall time."""

    def __init__(self) -> None:
        self.now = 0

    def perf_counter_ns(self) -> int:
        return self.now

    def thread_time_ns(self) -> int:
        return self.now // 2


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(step_clock, "time", fake)
    return fake


def test_laps_are_cpu_time_by_part_and_the_rest_is_lost(fake_time: FakeTime) -> None:
    clock = StepClock()
    assert clock.lost_share == 0.0
    clock.start()
    for part, duration in (("a", 100), ("b", 40), ("a", 60)):
        fake_time.now += duration
        clock.lap(part)
    assert clock.cpu_ns == {"a": 80, "b": 20}
    assert clock.lost_share == pytest.approx(0.5)


def test_time_between_steps_belongs_to_nobody(fake_time: FakeTime) -> None:
    clock = StepClock()
    for _ in range(2):
        fake_time.now += 1000
        clock.start()
        fake_time.now += 10
        clock.lap("a")
    assert clock.cpu_ns == {"a": 5}


@pytest.mark.parametrize(("share", "warns"), [(0.0, False), (0.1, False), (0.11, True), (0.9, True)])
def test_a_busy_machine_is_told_of(share: float, warns: bool) -> None:
    assert (doubt(share) is not None) == warns


@pytest.mark.parametrize("was_enabled", [True, False])
def test_garbage_collection_is_off_inside_and_as_before_outside(was_enabled: bool) -> None:
    try:
        (gc.enable if was_enabled else gc.disable)()
        with pytest.raises(KeyError):
            _look_up_without_collection()
        assert gc.isenabled() == was_enabled
    finally:
        gc.enable()


def _look_up_without_collection() -> None:
    with garbage_collection_off():
        assert not gc.isenabled()
        raise KeyError
