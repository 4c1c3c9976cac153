"""The block table of one request in one group: how it starts, grows, becomes findable, and forgets.

    | null: out of the window | findable: full blocks with known tokens | still filling, or lookahead |
    0                    num_skipped                            num_registered                   len(blocks)

What this file does not know: other groups, other requests, whether the pool has enough.
"""

from __future__ import annotations

from collections.abc import Sequence

from slotwise.interfaces.kv_cache import BlockStored
from slotwise_plugins.kv_cache.block import KVBlock
from slotwise_plugins.kv_cache.block_group import BlockGroup
from slotwise_plugins.kv_cache.hashing import HashChain, keys_within


class BlockTable:
    """Only grows; entries may turn into the null block."""

    __slots__ = ("blocks", "group", "num_hits", "num_registered", "num_skipped")

    def __init__(self, group: BlockGroup) -> None:
        self.group = group
        self.blocks: list[KVBlock] = []
        self.num_hits = 0
        """Leading entries that came from the cache."""
        self.num_registered = 0
        """Leading entries that were made findable, or came so."""
        self.num_skipped = 0
        """Leading entries that are the null block."""

    def num_missing(self, num_slots: int, hits: Sequence[KVBlock]) -> int:
        """Blocks to take, after `hits`, so that `num_slots` tokens have slots."""
        return max(0, self.group.num_blocks(num_slots) - len(self.blocks) - len(hits))

    def start(self, hits: Sequence[KVBlock], num_computed_tokens: int) -> None:
        """Begin with cached blocks, which the caller has touched."""
        self.blocks += hits
        self.num_hits = self.num_registered = len(hits)
        self.num_skipped = min(self._num_skippable(num_computed_tokens), len(hits))

    def skip(self, num_computed_tokens: int) -> None:
        """Release the blocks no later token sees, the last ones first."""
        first, last = self.num_skipped, self._num_skippable(num_computed_tokens)
        if first < last:
            pool = self.group.pool
            pool.release(reversed(self.blocks[first:last]))
            self.blocks[first:last] = [pool.null_block] * (last - first)
            self.num_skipped = last

    def _num_skippable(self, num_computed_tokens: int) -> int:
        return min(self.group.num_skipped_tokens(num_computed_tokens) // self.group.block_size, len(self.blocks))

    def register(self, chain: HashChain, num_tokens: int) -> None:
        """Make findable the blocks that `num_tokens` tokens fill; `chain` covers them.

        Accepted drafts may fill a block that leaves the window before it comes to be registered: null by then, it is passed over.
        """
        first, last = max(self.num_registered, self.num_skipped), num_tokens // self.group.block_size
        if first >= last:
            return
        self.num_registered = last
        became_findable = [index for index in range(first, last) if self._register_block(chain, index)]
        pool = self.group.pool
        if pool.record_events:
            pool.events += [self._stored(chain, run) for run in consecutive_runs(became_findable)]

    def _register_block(self, chain: HashChain, index: int) -> bool:
        group = self.group
        link = group.link(index)
        return group.pool.register(
            self.blocks[index],
            group.index,
            chain.hashes[link],
            chain.content(link),
            parent_hash=chain.hashes[group.link(index - 1)] if index else None,
            first_token=index * group.block_size,
            num_tokens=group.block_size,
            num_bytes=group.bytes_per_block,
        )

    def _stored(self, chain: HashChain, run: range) -> BlockStored:
        group, size, request = self.group, self.group.block_size, chain.request
        return BlockStored(
            block_hashes=tuple(chain.hashes[group.link(index)] for index in run),
            parent_hash=chain.hashes[group.link(run.start - 1)] if run.start else None,
            token_ids=tuple(request.all_token_ids[run.start * size : run.stop * size]),
            block_size=size,
            group=group.index,
            block_ids=tuple(self.blocks[index].block_id for index in run),
            extra_keys=tuple(keys_within(request.extra_keys, index * size, (index + 1) * size) for index in run),
        )

    def forget_uncomputed(self, num_computed_tokens: int) -> None:
        """Make unfindable what was registered for a step that never ran; cached blocks it started with are not its own."""
        num_valid = max(self.num_hits, self.num_skipped, num_computed_tokens // self.group.block_size)
        for block in self.blocks[num_valid : self.num_registered]:
            self.group.pool.forget(block)


def consecutive_runs(indices: Sequence[int]) -> list[range]:
    """Rising indices as runs without gaps: one event each."""
    runs: list[range] = []
    for index in indices:
        if runs and runs[-1].stop == index:
            runs[-1] = range(runs[-1].start, index + 1)
        else:
            runs.append(range(index, index + 1))
    return runs
