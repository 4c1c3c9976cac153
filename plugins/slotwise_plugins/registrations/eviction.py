"""The built-in eviction policies. Importing this file imports no implementation."""

from __future__ import annotations

from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl
from slotwise_plugins.eviction.cost_aware_options import CostAwareOptions


class Lru:
    """`lru`: least recently used."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="eviction",
            name="lru",
            implementation="slotwise_plugins.eviction.lru:LruEviction",
            api=">=1.0,<2",
            summary="The cached block given back longest ago goes first; of one chain, the last block before the first.",
        )


class Lfu:
    """`lfu`: least frequently used, with ageing."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="eviction",
            name="lfu",
            implementation="slotwise_plugins.eviction.lfu:LfuEviction",
            api=">=1.0,<2",
            summary="The cached block hit least often goes first, with ageing, so that old favourites make room.",
        )


class CostAware:
    """`cost_aware`: GreedyDual-Size-Frequency."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="eviction",
            name="cost_aware",
            implementation="slotwise_plugins.eviction.cost_aware:CostAwareEviction",
            api=">=1.0,<2",
            options=CostAwareOptions,
            summary="The cached block that is cheapest to compute again per byte, weighted by its hits, goes first.",
        )
