"""The registrations of kv_cache and scheduler name classes that exist, and importing them imports nothing heavy."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from slotwise.interfaces.kv_cache import KVCacheManager
from slotwise.interfaces.scheduler import SchedulerPolicy
from slotwise_plugins.registrations import kv_cache, scheduler


@pytest.mark.parametrize(
    ("registration", "slot", "name", "base"),
    [
        (kv_cache.Paged, "kv_cache", "paged", KVCacheManager),
        (scheduler.Fcfs, "scheduler", "fcfs", SchedulerPolicy),
        (scheduler.Priority, "scheduler", "priority", SchedulerPolicy),
    ],
)
def test_component_names_an_implementation_of_its_slot(registration: type, slot: str, name: str, base: type) -> None:
    component = registration.slotwise_component()  # type: ignore[attr-defined]
    assert (component.slot, component.name, component.options) == (slot, name, None)
    module, _, class_name = component.implementation.partition(":")
    assert issubclass(getattr(importlib.import_module(module), class_name), base)


def test_building_the_records_imports_no_torch_and_no_implementation() -> None:
    code = (
        "import sys\n"
        "from slotwise_plugins.registrations import kv_cache, scheduler\n"
        "for part in (kv_cache.Paged, scheduler.Fcfs, scheduler.Priority): part.slotwise_component()\n"
        "print([name for name in sys.modules if name == 'torch' or name.startswith(('slotwise_plugins.kv_cache', 'slotwise_schedulers'))])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
