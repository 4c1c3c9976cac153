"""`lru`: the block that was given back longest ago goes first; of one chain, the last block before the first.

What this file does not know: hits, depth, costs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from slotwise.interfaces.eviction import CachedBlock, EvictionPolicy, EvictionSetup


class LruEviction(EvictionPolicy):
    """Every operation is O(1).

    No block goes before one that continues it: whoever held the later block held the earlier one too, and gave it back after it.
    """

    def __init__(self, setup: EvictionSetup) -> None:
        super().__init__(setup)
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def add(self, block: CachedBlock) -> None:
        self._blocks[block.block_id] = None

    def remove(self, block: CachedBlock) -> None:
        del self._blocks[block.block_id]

    def pop_victim(self) -> int:
        return self._blocks.popitem(last=False)[0]

    def clear(self) -> None:
        self._blocks.clear()

    def __iter__(self) -> Iterator[int]:
        """Ids in the order they would be given up."""
        return iter(self._blocks)
