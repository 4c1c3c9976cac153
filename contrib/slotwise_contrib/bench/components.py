"""The policy and the KV cache manager to measure, by name, through the same door as the engine's own.

What this file does not know: what they are measured with.
"""

from __future__ import annotations

import dataclasses

from slotwise.interfaces.kv_cache import KVCacheManager, KVCacheSetup
from slotwise.interfaces.scheduler import SchedulerPolicy, SchedulerSetup
from slotwise.plugin.contract import import_implementation
from slotwise.plugin.options import validate_options
from slotwise.plugin.registry import ComponentRegistry


class MeasuredComponents:
    """Which implementations fill the two slots, with their default options.

    Raises ComponentNotFoundError, or PluginError for one that cannot be used.
    """

    def __init__(self, *, policy: str = "fcfs", kv_cache: str = "paged") -> None:
        registry = ComponentRegistry()
        loaded_policy, loaded_kv_cache = registry.get("scheduler", policy), registry.get("kv_cache", kv_cache)
        self._policy_class: type[SchedulerPolicy] = import_implementation(loaded_policy)
        self._kv_cache_class: type[KVCacheManager] = import_implementation(loaded_kv_cache)
        self._policy_options = validate_options(loaded_policy, {})
        self._kv_cache_options = validate_options(loaded_kv_cache, {})

    def make_policy(self, setup: SchedulerSetup) -> SchedulerPolicy:
        return self._policy_class(dataclasses.replace(setup, options=self._policy_options))

    def make_kv_cache(self, setup: KVCacheSetup) -> KVCacheManager:
        return self._kv_cache_class(dataclasses.replace(setup, options=self._kv_cache_options))
