"""From hash to block, for one group. Several blocks may have one hash: block tables only grow, so duplicates are never merged.

    hash -> newest block -> older_same -> older_same ...

The newest one is found first; the oldest, unused, is the next to be evicted. Every operation is O(1), whatever the number of duplicates.
"""

from __future__ import annotations

from collections.abc import KeysView

from slotwise_plugins.kv_cache.block import KVBlock
from slotwise_plugins.kv_cache.hashing import BlockContent


class HashIndex:
    """The findable blocks of one group."""

    def __init__(self) -> None:
        self._newest: dict[bytes, KVBlock] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def hashes(self) -> KeysView[bytes]:
        """Every hash that can be found."""
        return self._newest.keys()

    def find(self, block_hash: bytes, content: BlockContent | None) -> KVBlock | None:
        """A block of that hash and, where `content` is given, of that content."""
        block = self._newest.get(block_hash)
        if content is None:
            return block
        while block is not None and not content.equals(block.content):
            block = block.older_same
        return block

    def add(self, block: KVBlock) -> bool:
        """Make `block` findable by its hash. True if the hash could not be found before."""
        assert block.block_hash is not None
        older = self._newest.get(block.block_hash)
        block.older_same = older
        if older is not None:
            older.newer_same = block
        self._newest[block.block_hash] = block
        return older is None

    def remove(self, block: KVBlock) -> bool:
        """Undo `add`. True if the hash can no longer be found."""
        assert block.block_hash is not None
        older, newer = block.older_same, block.newer_same
        block.older_same = block.newer_same = None
        if older is not None:
            older.newer_same = newer
        if newer is not None:
            newer.older_same = older
            return False
        if older is not None:
            self._newest[block.block_hash] = older
            return False
        del self._newest[block.block_hash]
        return True
