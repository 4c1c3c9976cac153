"""The registrations of kv_cache, eviction and scheduler name classes that exist, and importing them imports nothing heavy."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from slotwise.interfaces.eviction import EvictionPolicy
from slotwise.interfaces.kv_cache import KVCacheManager
from slotwise.interfaces.scheduler import SchedulerPolicy
from slotwise_plugins.registrations import eviction, kv_cache, scheduler


@pytest.mark.parametrize(
    ("registration", "slot", "name", "base"),
    [
        (kv_cache.Paged, "kv_cache", "paged", KVCacheManager),
        (kv_cache.Radix, "kv_cache", "radix", KVCacheManager),
        (kv_cache.NoPrefix, "kv_cache", "no_prefix", KVCacheManager),
        (eviction.Lru, "eviction", "lru", EvictionPolicy),
        (eviction.Lfu, "eviction", "lfu", EvictionPolicy),
        (eviction.CostAware, "eviction", "cost_aware", EvictionPolicy),
        (scheduler.Fcfs, "scheduler", "fcfs", SchedulerPolicy),
        (scheduler.Priority, "scheduler", "priority", SchedulerPolicy),
    ],
)
def test_component_names_an_implementation_of_its_slot(registration: type, slot: str, name: str, base: type) -> None:
    component = registration.slotwise_component()  # type: ignore[attr-defined]
    assert (component.slot, component.name) == (slot, name)
    module, _, class_name = component.implementation.partition(":")
    assert issubclass(getattr(importlib.import_module(module), class_name), base)


def test_building_the_records_imports_no_torch_and_no_implementation() -> None:
    code = (
        "import sys\n"
        "from slotwise_plugins.registrations import eviction, kv_cache, scheduler\n"
        "parts = (kv_cache.Paged, kv_cache.Radix, kv_cache.NoPrefix, eviction.Lru, eviction.Lfu, eviction.CostAware, scheduler.Fcfs)\n"
        "modules = {part.slotwise_component().implementation.partition(':')[0] for part in parts}\n"
        "print(sorted(name for name in sys.modules if name == 'torch' or name in modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
