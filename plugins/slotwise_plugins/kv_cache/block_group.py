"""Base of the group kinds: what a layer still sees decides which blocks are freed early and which must be cached for a hit.

A kind states two facts of its layers; everything else follows from them:

    computed tokens ->   |  skipped: no later token sees it  |  seen by the next token  |
    block table     ->   |  null block                       |  blocks                  |

What this file does not know: requests, other groups, the free queue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from slotwise.interfaces.kv_cache import KVGroup
from slotwise_plugins.kv_cache.block import KVBlock
from slotwise_plugins.kv_cache.hashing import HashChain
from slotwise_plugins.kv_cache.pool import BlockPool


class BlockGroup(ABC):
    """One group's view of the pool. Holds no state of requests."""

    def __init__(self, group: KVGroup, pool: BlockPool, hash_granularity: int) -> None:
        self.index = group.index
        self.block_size = group.block_size
        self.bytes_per_block = group.bytes_per_block * max(1, len(group.layer_names))
        """Over all layers."""
        self.links_per_block = group.block_size // hash_granularity
        self.pool = pool

    @abstractmethod
    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Leading tokens that no token from position `num_computed_tokens` on will see."""

    @abstractmethod
    def next_skip(self, num_skipped_blocks: int) -> int:
        """Smallest number of computed tokens at which more than `num_skipped_blocks` whole blocks are skipped."""

    @property
    @abstractmethod
    def num_history_tokens(self) -> int | None:
        """Most tokens before the first new one that a step still needs; None = all."""

    def num_blocks(self, num_tokens: int) -> int:
        """Entries of a block table for that many tokens."""
        return -(-num_tokens // self.block_size)

    def peak_blocks(self, num_tokens: int, max_step_tokens: int | None) -> int:
        """Most blocks a request of `num_tokens` tokens holds at once, null entries not counted, if no step computes more than
        `max_step_tokens`. One block more than the span needs, since it need not begin at a block's edge."""
        blocks = self.num_blocks(num_tokens)
        if self.num_history_tokens is None or max_step_tokens is None:
            return blocks
        return min(blocks, self.num_blocks(self.num_history_tokens + max_step_tokens) + 1)

    def link(self, block_index: int) -> int:
        """Index of the chain link whose hash names that block of a table."""
        return (block_index + 1) * self.links_per_block - 1

    def cached_block(self, chain: HashChain, block_index: int) -> KVBlock | None:
        """A cached block that may stand at `block_index` of the table of the chain's request."""
        link = self.link(block_index)
        return self.pool.find(self.index, chain.hashes[link], chain.content(link))

    def is_cached_at(self, block: KVBlock, chain: HashChain, block_index: int) -> bool:
        """Whether `block` still is what `cached_block` may answer."""
        link = self.link(block_index)
        content = chain.content(link)
        return block.block_hash == chain.hashes[link] and block.group == self.index and (content is None or content.equals(block.content))

    def find_hits(self, chain: HashChain, max_tokens: int, alignment: int) -> list[KVBlock]:
        """Table of the longest cached prefix of at most `max_tokens` tokens and a multiple of `alignment`.

        Searched from the right: a prefix is usable if all blocks its next token sees are cached, and a missing block rules out every
        longer prefix that needs it, so each block is looked at once. The last block must be cached even where nothing is seen of it:
        only tokens that were once computed count as cached.
        """
        step = alignment // self.block_size
        end = max_tokens // alignment * step
        while end > 0:
            skipped = self.num_skipped_tokens(end * self.block_size) // self.block_size
            index = end - 1
            hits: list[KVBlock] = []
            while (block := self.cached_block(chain, index)) is not None:
                hits.append(block)
                index -= 1
                if index < skipped:
                    return [self.pool.null_block] * skipped + hits[: end - skipped][::-1]
            end = index // step * step
        return []
