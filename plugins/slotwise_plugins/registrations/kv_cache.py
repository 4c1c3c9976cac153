"""The built-in KV cache managers. Importing this file imports no implementation."""

from __future__ import annotations

from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl
from slotwise_plugins.kv_cache.radix_options import RadixOptions


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
            summary="Fixed-size blocks from one pool, with a hash-chained prefix cache.",
        )


class Radix:
    """`radix`: fixed-size blocks with a radix tree over tokens."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="kv_cache",
            name="radix",
            implementation="slotwise_plugins.kv_cache.radix_manager:RadixKVCacheManager",
            api=">=1.0,<2",
            options=RadixOptions,
            summary="A radix tree over tokens: a hit may end inside a block, whose start is then copied. Full attention only.",
        )


class NoPrefix:
    """`no_prefix`: fixed-size blocks and nothing else."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="kv_cache",
            name="no_prefix",
            implementation="slotwise_plugins.kv_cache.no_prefix:NoPrefixKVCacheManager",
            api=">=1.0,<2",
            summary="Fixed-size blocks from one pool; nothing is kept for other requests.",
        )
