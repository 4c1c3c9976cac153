"""One block of the pool, and the doubly linked queue of blocks nobody holds.

What this file does not know: hashes, groups, requests. The links live in the blocks themselves, so that a block leaves the middle of
the queue in O(1) and nothing is allocated while the engine runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from slotwise_plugins.kv_cache.hashing import BlockContent

if TYPE_CHECKING:
    from slotwise.interfaces.kv_cache import KVRequest
    from slotwise_plugins.kv_cache.radix_tree import RadixNode


class KVBlock:
    """Bookkeeping of one block: who holds it, what can be found in it, where it stands in the free queue. A `CachedBlock` while idle."""

    __slots__ = (
        "block_hash",
        "block_id",
        "content",
        "first_token",
        "group",
        "is_spoiled",
        "last_use",
        "newer_same",
        "next_free",
        "node",
        "num_bytes",
        "num_hits",
        "num_tokens",
        "older_same",
        "parent_hash",
        "prev_free",
        "ref_count",
        "writer",
    )

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.block_hash: bytes | None = None
        """Set while the block can be found; names its content within `group`."""
        self.parent_hash: bytes | None = None
        self.group = 0
        self.first_token = 0
        self.num_tokens = 0
        self.num_bytes = 0
        """These six describe the content while it can be found; see `interfaces.eviction.CachedBlock`."""
        self.num_hits = 0
        self.last_use = 0
        self.node: RadixNode | None = None
        """Its place in the radix tree, of managers that have one."""
        self.writer: KVRequest | None = None
        """The request that computes its content, until that request gives it back; None = the content is complete."""
        self.is_spoiled = False
        """The step that was to write it failed: what its holder wrote into it is not to be trusted."""
        self.content: BlockContent | None = None
        """Kept only where the hash function alone is no proof of equal content."""
        self.older_same: KVBlock | None = None
        self.newer_same: KVBlock | None = None
        """Neighbours among blocks of one hash; see `hash_index`."""
        self.prev_free: KVBlock = self
        self.next_free: KVBlock = self
        """Links of the free queue; a block linked to itself is not queued."""

    def __repr__(self) -> str:
        return f"KVBlock({self.block_id}, ref_count={self.ref_count}, cached={self.block_hash is not None})"


class FreeBlockQueue:
    """Free blocks from the one to be taken next (front) to the one to be kept longest (back). Every operation is O(1) per block."""

    def __init__(self, blocks: Sequence[KVBlock]) -> None:
        self._ends = KVBlock(-1)
        self._num_blocks = 0
        for block in blocks:
            self.append(block)

    def __len__(self) -> int:
        return self._num_blocks

    def __iter__(self) -> Iterator[KVBlock]:
        block = self._ends.next_free
        while block is not self._ends:
            yield block
            block = block.next_free

    def pop_front(self) -> KVBlock:
        """Take the next block. The caller has checked that there is one."""
        block = self._ends.next_free
        assert block is not self._ends, "pop_front on an empty free queue"
        self.remove(block)
        return block

    def append(self, block: KVBlock) -> None:
        """Queue `block` at the back."""
        self._link(self._ends.prev_free, block, self._ends)

    def prepend(self, block: KVBlock) -> None:
        """Queue `block` at the front."""
        self._link(self._ends, block, self._ends.next_free)

    def remove(self, block: KVBlock) -> None:
        """Take `block` out, wherever it stands."""
        assert block.next_free is not block, f"block {block.block_id} is not in the free queue"
        block.prev_free.next_free = block.next_free
        block.next_free.prev_free = block.prev_free
        block.prev_free = block.next_free = block
        self._num_blocks -= 1

    def _link(self, before: KVBlock, block: KVBlock, after: KVBlock) -> None:
        assert block.next_free is block, f"block {block.block_id} is in the free queue already"
        before.next_free = after.prev_free = block
        block.prev_free, block.next_free = before, after
        self._num_blocks += 1
