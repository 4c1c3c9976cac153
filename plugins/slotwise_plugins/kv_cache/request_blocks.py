"""What a manager keeps of one request: a block table per group, and up to where nothing at all needs to be done for it.

`RequestBlocks` alone makes nothing findable; `HashedRequestBlocks` does by a hash chain.

What this file does not know: the pool, the other requests.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import ClassVar

from slotwise_plugins.kv_cache.block import KVBlock
from slotwise_plugins.kv_cache.block_group import BlockGroup
from slotwise_plugins.kv_cache.block_table import BlockTable
from slotwise_plugins.kv_cache.hashing import HashChain


class RequestBlocks:
    """All of one request's tables."""

    __slots__ = ("num_slots", "quiet_until", "tables")

    makes_findable: ClassVar[bool] = False
    """Whether a block that becomes full concerns `register`."""

    def __init__(self, groups: Sequence[BlockGroup]) -> None:
        self.tables = tuple(BlockTable(group) for group in groups)
        self.num_slots = 0
        """Tokens that have a slot in every group."""
        self.quiet_until = 0
        """A step that ends at this many tokens or fewer completes no block and lets no block out of a window."""

    def register(self, num_tokens: int) -> None:
        """Make findable every block that the first `num_tokens` tokens fill."""

    def settle(self, num_computed_tokens: int) -> None:
        """Called before the blocks are given back: what is beyond the computed tokens must not stay findable."""
        for table in self.tables:
            table.forget_uncomputed(num_computed_tokens)

    def refresh(self) -> None:
        """Recompute the two bounds after the tables changed."""
        self.num_slots = min([len(table.blocks) * table.group.block_size for table in self.tables])
        self.quiet_until = min([self._quiet_until(table) for table in self.tables])

    def _quiet_until(self, table: BlockTable) -> int:
        completes = (table.num_registered + 1) * table.group.block_size if self.makes_findable else sys.maxsize
        return min(completes - 1, table.group.next_skip(table.num_skipped))

    def in_eviction_order(self) -> list[KVBlock]:
        """Every block, those that end last first: a prefix whose head is gone can never be found, whatever is left of its tail."""
        if len(self.tables) == 1:
            return self.tables[0].blocks[::-1]
        ends = [(position * table.group.block_size, block) for table in self.tables for position, block in enumerate(table.blocks, start=1)]
        ends.sort(key=lambda item: -item[0])
        return [block for _, block in ends]


class HashedRequestBlocks(RequestBlocks):
    """Blocks that are found by the hashes of their request's chain."""

    __slots__ = ("chain",)

    makes_findable = True

    def __init__(self, groups: Sequence[BlockGroup], chain: HashChain) -> None:
        super().__init__(groups)
        self.chain = chain

    def register(self, num_tokens: int) -> None:
        self.chain.extend(num_tokens)
        for table in self.tables:
            table.register(self.chain, num_tokens)
