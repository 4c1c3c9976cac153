"""The built-in KV cache managers. Importing this file imports no implementation."""

from __future__ import annotations

from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl


class Paged:
    """`paged`: fixed-size blocks with a hash-chained prefix cache."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="kv_cache",
            name="paged",
            implementation="slotwise_plugins.kv_cache.manager:PagedKVCacheManager",
            api=">=1.0,<2",
            summary="Fixed-size blocks from one pool, with a hash-chained prefix cache evicted least recently used first.",
        )
