"""Prefix lookup over all groups: a prefix counts only as far as every group can use it.

What this file does not know: requests, allocation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from slotwise.interfaces.attention import CHUNKED_LOCAL, FULL, SLIDING_WINDOW
from slotwise.interfaces.kv_cache import KVGroup
from slotwise_plugins.kv_cache.block import KVBlock
from slotwise_plugins.kv_cache.block_group import BlockGroup
from slotwise_plugins.kv_cache.chunked_local import ChunkedLocalGroup
from slotwise_plugins.kv_cache.full import FullGroup
from slotwise_plugins.kv_cache.hashing import HashChain
from slotwise_plugins.kv_cache.pool import BlockPool
from slotwise_plugins.kv_cache.sliding_window import SlidingWindowGroup

GROUP_KINDS: dict[str, type[BlockGroup]] = {FULL: FullGroup, SLIDING_WINDOW: SlidingWindowGroup, CHUNKED_LOCAL: ChunkedLocalGroup}


def make_groups(groups: Sequence[KVGroup], pool: BlockPool, hash_granularity: int) -> tuple[BlockGroup, ...]:
    """The managed form of each group. Raises ValueError for a kind that is not managed here."""
    for group in groups:
        if group.kind not in GROUP_KINDS:
            raise ValueError(f"KV group {group.index} is of kind {group.kind!r}; `paged` and `no_prefix` manage {', '.join(GROUP_KINDS)}.")
    return tuple(GROUP_KINDS[group.kind](group, pool, hash_granularity) for group in groups)


class Coordinator(Protocol):
    """Finds the longest prefix that every group can use."""

    def find(self, chain: HashChain, max_tokens: int) -> list[list[KVBlock]]:
        """Per group the table of the hit, all of one length in tokens <= max_tokens; `chain` covers max_tokens."""


class NoPrefixCoordinator:
    """Caching is off: nothing is ever found."""

    def __init__(self, groups: Sequence[BlockGroup]) -> None:
        self._num_groups = len(groups)

    def find(self, chain: HashChain, max_tokens: int) -> list[list[KVBlock]]:
        return [[] for _ in range(self._num_groups)]


class UnitaryCoordinator:
    """One group: its own answer."""

    def __init__(self, group: BlockGroup) -> None:
        self._group = group

    def find(self, chain: HashChain, max_tokens: int) -> list[list[KVBlock]]:
        return [self._group.find_hits(chain, max_tokens, self._group.block_size)]


class HybridCoordinator:
    """Several groups: each may only shorten the prefix, full attention first, until no group shortens it any more.

    Lengths are multiples of the least common multiple of the block sizes, so that a hit ends at a block's edge in every group.
    """

    def __init__(self, groups: Sequence[BlockGroup]) -> None:
        self._groups = groups
        self._order = sorted(groups, key=lambda group: not isinstance(group, FullGroup))
        self._alignment = math.lcm(*(group.block_size for group in groups))

    def find(self, chain: HashChain, max_tokens: int) -> list[list[KVBlock]]:
        hits: dict[int, list[KVBlock]] = {}
        length = max_tokens // self._alignment * self._alignment
        before = -1
        while length != before:
            before = length
            for group in self._order:
                length = self._shorten(group, hits, chain, length)
        return [hits[group.index] for group in self._groups]

    def _shorten(self, group: BlockGroup, hits: dict[int, list[KVBlock]], chain: HashChain, length: int) -> int:
        found = hits.get(group.index)
        if found is None or len(found) * group.block_size != length:
            if found is not None and isinstance(group, FullGroup):
                del found[length // group.block_size :]
            else:
                found = hits[group.index] = group.find_hits(chain, length, self._alignment)
        return len(found) * group.block_size


def make_coordinator(groups: Sequence[BlockGroup], *, enable_prefix_caching: bool) -> Coordinator:
    """The coordinator for these groups."""
    if not enable_prefix_caching:
        return NoPrefixCoordinator(groups)
    return UnitaryCoordinator(groups[0]) if len(groups) == 1 else HybridCoordinator(groups)
