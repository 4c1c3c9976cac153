from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from slotwise.config.engine_config import ComponentOptions
from slotwise.interfaces.attention import AttentionCapabilities
from slotwise.interfaces.sampler import SamplerCapabilities
from slotwise.plugin.component import Component
from slotwise.plugin.discovery import EntryPointInfo
from slotwise.plugin.record_check import check_record
from slotwise.plugin.states import PluginStatus, RecordFault


class GoodOptions(ComponentOptions):
    size: int = 1


class LaxOptions(BaseModel):
    size: int = 1


GOOD: dict[str, Any] = {
    "slot": "attention",
    "name": "x",
    "implementation": "pkg.mod:Class",
    "api": ">=1.0,<2",
    "summary": "s",
    "capabilities": AttentionCapabilities(),
    "options": GoodOptions,
    "requires": ("pluggy>=1", "nothing-installed; python_version < '3'"),
}

FAULTS = [
    ({"slot": "sampler"}, PluginStatus.INVALID, 'says "sampler:x"'),
    ({"name": "y"}, PluginStatus.INVALID, 'says "attention:y"'),
    ({"implementation": "pkg.mod"}, PluginStatus.INVALID, "pkg.mod"),
    ({"implementation": "pkg mod:Class"}, PluginStatus.INVALID, "pkg mod:Class"),
    ({"implementation": object}, PluginStatus.INVALID, "implementation"),
    ({"api": "newest"}, PluginStatus.INVALID, "newest"),
    ({"api": None}, PluginStatus.INVALID, "None"),
    ({"api": ">=2.0,<3"}, PluginStatus.INCOMPATIBLE, ">=2.0,<3"),
    ({"capabilities": None}, PluginStatus.INVALID, "AttentionCapabilities"),
    ({"capabilities": SamplerCapabilities()}, PluginStatus.INVALID, "SamplerCapabilities"),
    ({"options": GoodOptions()}, PluginStatus.INVALID, "not a pydantic model class"),
    ({"options": LaxOptions}, PluginStatus.INVALID, "accepts unknown keys"),
    ({"requires": "pluggy"}, PluginStatus.INVALID, "'pluggy'"),
    ({"requires": ("not a requirement!",)}, PluginStatus.INVALID, "not a requirement!"),
    ({"requires": ("pluggy>=1", "no-such-distribution")}, PluginStatus.UNAVAILABLE, '"no-such-distribution" (not installed)'),
    ({"requires": ("pluggy>=999",)}, PluginStatus.UNAVAILABLE, "installed is 1."),
]


@pytest.fixture
def info(make_info: Callable[..., EntryPointInfo]) -> EntryPointInfo:
    return make_info("attention:x")


def test_a_sound_record_passes_unchanged(info: EntryPointInfo) -> None:
    component = Component(**GOOD)
    assert check_record(component, info) is component


@pytest.mark.parametrize(("change", "status", "cause"), FAULTS)
def test_each_fault_has_its_status_cause_and_cure(info: EntryPointInfo, change: dict[str, Any], status: PluginStatus, cause: str) -> None:
    with pytest.raises(RecordFault) as raised:
        check_record(Component(**(GOOD | change)), info)
    assert raised.value.status is status
    assert cause in raised.value.cause
    assert raised.value.cure


@pytest.mark.parametrize(("record", "found"), [(None, "None"), ({"slot": "attention"}, "dict"), (Component, "type")])
def test_anything_but_a_record_is_invalid(info: EntryPointInfo, record: Any, found: str) -> None:
    with pytest.raises(RecordFault, match=found) as raised:
        check_record(record, info)
    assert raised.value.status is PluginStatus.INVALID


def test_only_missing_distributions_stand_in_the_command_that_cures(info: EntryPointInfo) -> None:
    with pytest.raises(RecordFault) as raised:
        check_record(Component(**(GOOD | {"requires": ("pluggy", "no-such-a>=1", "no-such-b")})), info)
    assert raised.value.cure == 'python -m pip install "no-such-a>=1" "no-such-b"'


def test_slots_without_capabilities_take_any(make_info: Callable[..., EntryPointInfo]) -> None:
    component = Component(slot="scheduler", name="x", implementation="m:C", api=">=1", summary="s")
    assert check_record(component, make_info("scheduler:x")) is component
