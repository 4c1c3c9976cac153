"""The pool: every block of the engine, who may take it, and what can be found in it.

All groups take from one pool, so an id stands for one block whatever the group. Block 0 is the null block: it is in no queue and no
index, and its reference count means nothing.

What this file does not know: requests, tables, windows.
"""

from __future__ import annotations

from collections.abc import Iterable

from slotwise.interfaces.kv_cache import NULL_BLOCK_ID, AllBlocksCleared, BlockRemoved, KVEvent
from slotwise_plugins.kv_cache.block import FreeBlockQueue, KVBlock
from slotwise_plugins.kv_cache.hash_index import HashIndex
from slotwise_plugins.kv_cache.hashing import BlockContent


class BlockPool:
    """Blocks 0 .. num_blocks - 1, all free but the null block."""

    def __init__(self, num_blocks: int, num_groups: int, *, record_events: bool) -> None:
        self.blocks = [KVBlock(block_id) for block_id in range(num_blocks)]
        self.null_block = self.blocks[NULL_BLOCK_ID]
        self.null_block.ref_count = 1
        self.free_queue = FreeBlockQueue(self.blocks[NULL_BLOCK_ID + 1 :])
        self.indexes = tuple(HashIndex() for _ in range(num_groups))
        self.record_events = record_events
        self.events: list[KVEvent] = []

    @property
    def num_usable_blocks(self) -> int:
        return len(self.blocks) - 1

    def take(self, num_blocks: int) -> list[KVBlock]:
        """Blocks from the front of the queue, each with one holder and nothing findable in it. The caller has checked that they exist."""
        taken = [self.free_queue.pop_front() for _ in range(num_blocks)]
        for block in taken:
            block.ref_count = 1
            self.forget(block)
        return taken

    def touch(self, blocks: Iterable[KVBlock]) -> None:
        """One more holder for each block; free ones leave the queue."""
        for block in blocks:
            if block is self.null_block:
                continue
            if block.ref_count == 0:
                self.free_queue.remove(block)
            block.ref_count += 1

    def release(self, blocks: Iterable[KVBlock]) -> None:
        """One holder less for each, first to be evicted first. Unfindable ones go to the front: they must not push out cached ones."""
        for block in blocks:
            if block is self.null_block:
                continue
            assert block.ref_count > 0, f"block {block.block_id} was released once too often"
            block.ref_count -= 1
            if block.ref_count == 0:
                self._enqueue(block)

    def _enqueue(self, block: KVBlock) -> None:
        if block.block_hash is None:
            self.free_queue.prepend(block)
        else:
            self.free_queue.append(block)

    def find(self, group: int, block_hash: bytes, content: BlockContent | None) -> KVBlock | None:
        """A block of `group` that holds what the hash stands for."""
        return self.indexes[group].find(block_hash, content)

    def register(self, block: KVBlock, group: int, block_hash: bytes, content: BlockContent | None) -> bool:
        """Make a full block findable. True if its hash could not be found before."""
        assert block.block_hash is None, f"block {block.block_id} is registered already"
        block.block_hash, block.group, block.content = block_hash, group, content
        return self.indexes[group].add(block)

    def forget(self, block: KVBlock) -> None:
        """Make a block unfindable; its holders keep it. No-op if it is not findable."""
        if block.block_hash is None:
            return
        if self.indexes[block.group].remove(block) and self.record_events:
            self.events.append(BlockRemoved(block_hashes=(block.block_hash,), group=block.group))
        block.block_hash = block.content = None

    def evict(self, block: KVBlock) -> None:
        """`forget`, and where nobody holds the block let it be taken next."""
        if block.block_hash is None:
            return
        self.forget(block)
        if block.ref_count == 0:
            self.free_queue.remove(block)
            self.free_queue.prepend(block)

    def clear(self) -> None:
        """Make every block unfindable. Only while nobody holds one."""
        for block in self.blocks:
            block.block_hash = block.content = block.older_same = block.newer_same = None
        self.indexes = tuple(HashIndex() for _ in self.indexes)
        if self.record_events:
            self.events.append(AllBlocksCleared())

    def take_events(self) -> list[KVEvent]:
        """Events since the last call, in order."""
        events, self.events = self.events, []
        return events
