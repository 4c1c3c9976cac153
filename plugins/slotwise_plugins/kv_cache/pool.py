"""The pool: every block of the engine, who may take it, and what can be found in it.

All groups take from one pool, so an id stands for one block whatever the group. Block 0 is the null block: it is in no queue and no
index, and its reference count means nothing.

    free blocks  =  empty: nothing can be found in them, taken first  +  idle: cached, the eviction policy says which goes next

What this file does not know: requests, tables, windows, how the policy decides.
"""

from __future__ import annotations

from collections.abc import Iterable

from slotwise.errors import ContractError
from slotwise.interfaces.eviction import EvictionPolicy
from slotwise.interfaces.kv_cache import NULL_BLOCK_ID, AllBlocksCleared, BlockRemoved, KVEvent
from slotwise_plugins.kv_cache.block import FreeBlockQueue, KVBlock
from slotwise_plugins.kv_cache.hash_index import HashIndex
from slotwise_plugins.kv_cache.hashing import BlockContent


class BlockPool:
    """Blocks 0 .. num_blocks - 1, all free but the null block. Findable blocks are kept in one hash index per group."""

    def __init__(self, num_blocks: int, num_groups: int, policy: EvictionPolicy, *, record_events: bool) -> None:
        self.blocks = [KVBlock(block_id) for block_id in range(num_blocks)]
        self.null_block = self.blocks[NULL_BLOCK_ID]
        self.null_block.ref_count = 1
        self.empty_queue = FreeBlockQueue(self.blocks[NULL_BLOCK_ID + 1 :])
        self.policy = policy
        self.num_idle_blocks = 0
        """Blocks that are with the policy."""
        self.indexes = tuple(HashIndex() for _ in range(num_groups))
        self.record_events = record_events
        self.events: list[KVEvent] = []
        self._num_uses = 0

    @property
    def num_usable_blocks(self) -> int:
        return len(self.blocks) - 1

    @property
    def num_free_blocks(self) -> int:
        return len(self.empty_queue) + self.num_idle_blocks

    def take(self, num_blocks: int) -> list[KVBlock]:
        """Empty blocks, then what the policy gives up, each with one holder and nothing findable in it. The caller has checked that they
        exist."""
        taken = [self.empty_queue.pop_front() if len(self.empty_queue) else self._pop_victim() for _ in range(num_blocks)]
        for block in taken:
            block.ref_count = 1
            block.is_spoiled = False
        return taken

    def _pop_victim(self) -> KVBlock:
        block_id = self.policy.pop_victim()
        block = self.blocks[block_id]
        if block.ref_count or block.block_hash is None:
            raise ContractError(
                f"The eviction policy {type(self.policy).__qualname__} gave up block {block_id}, which it was not to choose from: a policy "
                "may only name blocks that were added and not removed since. Choose another kv_cache.eviction."
            )
        self.num_idle_blocks -= 1
        self.forget(block)
        return block

    def touch(self, blocks: Iterable[KVBlock]) -> None:
        """A request found these: one more holder for each, and free ones are idle no longer."""
        self._num_uses += 1
        for block in blocks:
            if block is self.null_block:
                continue
            if block.ref_count == 0:
                self._remove_idle(block)
            block.ref_count += 1
            block.num_hits += 1
            block.last_use = self._num_uses

    def refresh(self, block: KVBlock) -> None:
        """A request found this and takes a copy: it counts as used, and is held by nobody more than before."""
        if block.ref_count == 0:
            self.policy.remove(block)
        self._num_uses += 1
        block.num_hits += 1
        block.last_use = self._num_uses
        if block.ref_count == 0:
            self.policy.add(block)

    def release(self, blocks: Iterable[KVBlock]) -> None:
        """One holder less for each, first to be evicted first."""
        self._num_uses += 1
        for block in blocks:
            if block is self.null_block:
                continue
            assert block.ref_count > 0, f"block {block.block_id} was released once too often"
            block.ref_count -= 1
            if block.ref_count == 0:
                self._set_free(block)

    def _set_free(self, block: KVBlock) -> None:
        """Unfindable blocks are taken before all others, the last released one first: they must not push out cached ones."""
        if block.block_hash is None:
            self.empty_queue.prepend(block)
        else:
            block.last_use = self._num_uses
            self.policy.add(block)
            self.num_idle_blocks += 1

    def _remove_idle(self, block: KVBlock) -> None:
        self.policy.remove(block)
        self.num_idle_blocks -= 1

    def find(self, group: int, block_hash: bytes, content: BlockContent | None) -> KVBlock | None:
        """A block of `group` that holds what the hash stands for."""
        return self.indexes[group].find(block_hash, content)

    def register(
        self,
        block: KVBlock,
        group: int,
        block_hash: bytes,
        content: BlockContent | None,
        *,
        parent_hash: bytes | None = None,
        first_token: int = 0,
        num_tokens: int = 0,
        num_bytes: int = 0,
    ) -> bool:
        """Make a full block findable. True if its hash could not be found before."""
        assert block.block_hash is None, f"block {block.block_id} is registered already"
        block.block_hash, block.group, block.content, block.parent_hash = block_hash, group, content, parent_hash
        block.first_token, block.num_tokens, block.num_bytes, block.num_hits = first_token, num_tokens, num_bytes, 0
        return self._link(block)

    def _link(self, block: KVBlock) -> bool:
        """Put a described block into the index. True if its hash could not be found before."""
        return self.indexes[block.group].add(block)

    def _unlink(self, block: KVBlock) -> bool:
        """Undo `_link`. True if its hash can no longer be found."""
        return self.indexes[block.group].remove(block)

    def forget(self, block: KVBlock) -> None:
        """Make a block that is not idle unfindable; its holders keep it. No-op if it is not findable."""
        if block.block_hash is None:
            return
        if self._unlink(block) and self.record_events:
            self.events.append(BlockRemoved(block_hashes=(block.block_hash,), group=block.group))
        block.block_hash = block.content = block.writer = None

    def evict(self, block: KVBlock) -> None:
        """`forget`, and where nobody holds the block let it be taken next."""
        if block.block_hash is None:
            return
        if block.ref_count == 0:
            self._remove_idle(block)
            self.empty_queue.prepend(block)
        self.forget(block)

    def clear(self) -> None:
        """Make every block unfindable. Only while nobody holds one."""
        for block in self.blocks:
            if block.block_hash is not None:
                self.empty_queue.append(block)
            block.block_hash = block.content = block.older_same = block.newer_same = block.node = block.writer = None
        self.policy.clear()
        self.num_idle_blocks = 0
        self.indexes = tuple(HashIndex() for _ in self.indexes)
        if self.record_events:
            self.events.append(AllBlocksCleared())

    def take_events(self) -> list[KVEvent]:
        """Events since the last call, in order."""
        events, self.events = self.events, []
        return events
