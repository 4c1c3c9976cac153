"""Full attention: every token sees all before it, so nothing is ever freed early and a hit is a run of cached blocks from the start."""

from __future__ import annotations

import sys

from slotwise_plugins.kv_cache.block import KVBlock
from slotwise_plugins.kv_cache.block_group import BlockGroup
from slotwise_plugins.kv_cache.hashing import HashChain


class FullGroup(BlockGroup):
    """Layers of kind `full`."""

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return 0

    def next_skip(self, num_skipped_blocks: int) -> int:
        return sys.maxsize

    @property
    def num_history_tokens(self) -> int | None:
        return None

    def find_hits(self, chain: HashChain, max_tokens: int, alignment: int) -> list[KVBlock]:
        """From the left, up to the first block that is missing."""
        hits: list[KVBlock] = []
        for index in range(max_tokens // self.block_size):
            block = self.cached_block(chain, index)
            if block is None:
                break
            hits.append(block)
        step = alignment // self.block_size
        del hits[len(hits) // step * step :]
        return hits
