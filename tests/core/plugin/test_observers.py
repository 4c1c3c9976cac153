from __future__ import annotations

import logging
from typing import Any

import pytest

from slotwise.engine.outputs import FinishReason
from slotwise.engine.scheduler_output import CachedRequestData, SchedulerOutput
from slotwise.errors import ContractError
from slotwise.interfaces.observer import EngineInfo, Observer, ObserverSetup, RequestFinished, StepEvent
from slotwise.plugin.hookspecs import hookimpl
from slotwise.plugin.observers import ObserverHub

INFO = EngineInfo(model="m", device="cpu", dtype="float32", max_model_len=9, block_size=4, num_blocks=8)
FINISHED = RequestFinished(request_id="r", reason=FinishReason.STOP, num_prompt_tokens=3, num_output_tokens=2)
STEP = StepEvent(
    scheduler_output=SchedulerOutput(
        step=7,
        scheduled_new_requests=[],
        scheduled_cached_requests=CachedRequestData(),
        num_scheduled_tokens={"r": 5},
        total_num_scheduled_tokens=5,
    ),
    schedule_ms=1.0,
    execute_ms=2.0,
    sample_ms=3.0,
    update_ms=4.0,
    num_running=1,
    num_waiting=2,
    num_kv_blocks=8,
    num_free_kv_blocks=6,
)


class Recorder(Observer):
    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__(ObserverSetup())
        self.error = error
        self.heard: list[Any] = []

    @hookimpl
    def slotwise_engine_started(self, info: EngineInfo) -> None:
        self.heard.append(info)

    @hookimpl
    def slotwise_step_finished(self, event: StepEvent) -> None:
        self.heard.append(event)
        if self.error is not None:
            raise self.error

    @hookimpl
    def slotwise_request_finished(self, event: RequestFinished) -> None:
        self.heard.append(event)

    @hookimpl
    def slotwise_engine_stopped(self) -> None:
        self.heard.append("stopped")


class StepsOnly(Observer):
    count = 0

    @hookimpl
    def slotwise_step_finished(self) -> None:
        self.count += 1


def tell_everything(hub: ObserverHub) -> None:
    hub.engine_started(INFO)
    hub.step_finished(STEP)
    hub.request_finished(FINISHED)
    hub.engine_stopped()


def test_without_observers_the_hub_is_inactive() -> None:
    hub = ObserverHub()
    assert not hub.active
    tell_everything(hub)


def test_each_observer_hears_every_event_in_order() -> None:
    first, second = Recorder(), Recorder()
    hub = ObserverHub({"first": first, "second": second})
    assert hub.active
    tell_everything(hub)
    assert first.heard == second.heard == [INFO, STEP, FINISHED, "stopped"]


def test_an_observer_may_listen_to_one_hook_and_take_fewer_arguments() -> None:
    observer = StepsOnly(ObserverSetup())
    tell_everything(ObserverHub({"steps": observer}))
    assert observer.count == 1


@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(3)])
def test_an_observer_that_raises_is_reported_once_and_removed_and_the_others_go_on(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    before, failing, after = Recorder(), Recorder(error), Recorder()
    hub = ObserverHub({"before": before, "failing": failing, "after": after})
    with caplog.at_level(logging.WARNING, "slotwise"):
        hub.step_finished(STEP)
        hub.step_finished(STEP)
    assert before.heard == after.heard == [STEP, STEP]
    assert failing.heard == [STEP]
    assert hub.names == ("before", "after")
    (entry,) = caplog.records
    assert '"failing"' in entry.getMessage()
    assert type(error).__name__ in entry.getMessage()
    assert entry.exc_info is not None


def test_the_hub_is_inactive_once_its_last_observer_failed() -> None:
    hub = ObserverHub({"failing": Recorder(ValueError())})
    hub.step_finished(STEP)
    assert not hub.active


def test_keyboard_interrupt_passes_through() -> None:
    hub = ObserverHub({"x": Recorder(KeyboardInterrupt())})
    with pytest.raises(KeyboardInterrupt):
        hub.step_finished(STEP)


class Unmarked(Observer):
    def slotwise_step_finished(self, event: StepEvent) -> None: ...


class WrongArgument(Observer):
    @hookimpl
    def slotwise_step_finished(self, step: StepEvent) -> None: ...


class UnknownHook(Observer):
    @hookimpl
    def slotwise_stepped(self) -> None: ...


@pytest.mark.parametrize(("observer", "text"), [(Unmarked, "lacks the mark"), (WrongArgument, "step"), (UnknownHook, "slotwise_stepped")])
def test_hooks_that_would_never_be_called_are_refused(observer: type[Observer], text: str) -> None:
    with pytest.raises(ContractError, match=text):
        ObserverHub({"x": observer(ObserverSetup())})


def test_a_step_event_derives_step_duration_and_usage() -> None:
    assert (STEP.step, STEP.total_ms, STEP.kv_usage) == (7, 10.0, 0.25)
