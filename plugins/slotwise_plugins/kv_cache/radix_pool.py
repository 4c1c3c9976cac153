"""The pool of the `radix` manager: findable blocks hang in a tree instead of a hash index, and no content is kept idle twice.

What this file does not know: requests, tables, lookups.
"""

from __future__ import annotations

from slotwise.interfaces.eviction import EvictionPolicy
from slotwise_plugins.kv_cache.block import KVBlock
from slotwise_plugins.kv_cache.pool import BlockPool
from slotwise_plugins.kv_cache.radix_tree import RadixNode, RadixTree


class RadixPool(BlockPool):
    """A block is findable while it hangs in the tree."""

    def __init__(self, num_blocks: int, tree: RadixTree, policy: EvictionPolicy, *, record_events: bool) -> None:
        super().__init__(num_blocks, 0, policy, record_events=record_events)
        self.tree = tree

    def hang(self, block: KVBlock, node: RadixNode, *, first_token: int, num_bytes: int) -> bool:
        """Make `block` findable as the content of `node`. True if that could not be found before."""
        assert node.parent is not None
        block.node = node
        return self.register(
            block,
            0,
            node.block_hash,
            None,
            parent_hash=node.parent.block_hash if first_token else None,
            first_token=first_token,
            num_tokens=len(node.label),
            num_bytes=num_bytes,
        )

    def _link(self, block: KVBlock) -> bool:
        assert block.node is not None
        return self.tree.add(block.node, block)

    def _unlink(self, block: KVBlock) -> bool:
        return self.tree.remove(block)

    def _set_free(self, block: KVBlock) -> None:
        """Of two blocks with one content only one is worth keeping: this one, unless somebody still holds the other."""
        if block.node is not None and len(block.node.blocks) > 1:
            other = next(each for each in block.node.blocks if each is not block)
            if other.ref_count:
                self.forget(block)
            else:
                self.evict(other)
        super()._set_free(block)

    def clear(self) -> None:
        self.tree.clear()
        super().clear()
