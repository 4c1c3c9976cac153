from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from slotwise.engine.outputs import FinishReason
from slotwise.engine.scheduler_output import CachedRequestData, SchedulerOutput
from slotwise.errors import ConfigError
from slotwise.interfaces.observer import ComponentInUse, EngineInfo, ObserverSetup, RequestFinished, StepEvent
from slotwise.plugin.contract import import_implementation
from slotwise.plugin.observers import ObserverHub
from slotwise.plugin.options import validate_options
from slotwise.plugin.registry import ComponentRegistry

LOGGER = "slotwise_plugins.observers.log"


def step(number: int, num_tokens: int = 10) -> StepEvent:
    scheduled = SchedulerOutput(
        step=number,
        scheduled_new_requests=[],
        scheduled_cached_requests=CachedRequestData(),
        num_scheduled_tokens={"r": num_tokens},
        total_num_scheduled_tokens=num_tokens,
    )
    return StepEvent(
        scheduler_output=scheduled,
        schedule_ms=1.0,
        execute_ms=2.0,
        sample_ms=1.0,
        update_ms=1.0,
        num_running=3,
        num_waiting=4,
        num_kv_blocks=10,
        num_free_kv_blocks=5,
        num_generated_tokens=2,
    )


def hub(**options: Any) -> ObserverHub:
    """As the engine makes it: record, options, class."""
    loaded = ComponentRegistry().get("observer", "log")
    return ObserverHub({"log": import_implementation(loaded)(ObserverSetup(options=validate_options(loaded, options)))})


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, LOGGER)
    return caplog


def test_tells_of_drafts_where_there_were_any(lines: pytest.LogCaptureFixture) -> None:
    told = hub(interval_steps=2)
    for _ in range(2):
        told.step_finished(step(0))
    assert "drafts" not in lines.messages[0]
    drafting = step(1)
    drafting.scheduler_output.scheduled_spec_decode_tokens = {"r": [4, 5, 6]}
    for _ in range(2):
        told.step_finished(replace(drafting, num_accepted_draft_tokens=2))
    assert lines.messages[1].endswith(", 4 of 6 drafts accepted")


def test_writes_one_line_per_interval_with_the_sum_of_its_steps(lines: pytest.LogCaptureFixture) -> None:
    told = hub(interval_steps=3)
    for number in range(7):
        told.step_finished(step(number))
    assert len(lines.messages) == 2
    assert lines.messages[0].startswith(
        "step 2: 3 running, 4 waiting, KV 50.0 %; last 3 steps: 5.0 ms each, 30 tokens computed (2000/s), 6 generated"
    )
    assert lines.messages[1].startswith("step 5: ")


def test_writes_the_rest_when_the_engine_stops(lines: pytest.LogCaptureFixture) -> None:
    told = hub(interval_steps=100)
    told.step_finished(step(0))
    told.request_finished(RequestFinished(request_id="r", reason=FinishReason.STOP, num_prompt_tokens=1, num_output_tokens=1))
    told.engine_stopped()
    assert len(lines.messages) == 1
    assert "1 requests ended" in lines.messages[0]


def test_an_idle_engine_stops_in_silence(lines: pytest.LogCaptureFixture) -> None:
    told = hub(interval_steps=1)
    told.step_finished(step(0))
    told.engine_stopped()
    hub().engine_stopped()
    assert len(lines.messages) == 1


def test_names_the_components_when_the_engine_starts(lines: pytest.LogCaptureFixture) -> None:
    parts = [
        ComponentInUse(slot="sampler", part="", name="torch", distribution="slotwise", version="1"),
        ComponentInUse(slot="attention", part="decode", name="mine", distribution="my-dist", version="1"),
    ]
    info = EngineInfo(model="m", device="cpu", dtype="float32", max_model_len=9, block_size=4, num_blocks=8, components=parts)
    hub().engine_started(info)
    assert lines.messages == ["engine started: m on cpu in float32, 8 KV blocks; sampler=torch, attention.decode=mine"]


@pytest.mark.parametrize("options", [{"interval_steps": 0}, {"interval": 5}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="interval_steps"):
        hub(**options)
