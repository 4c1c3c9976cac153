"""The radix tree: what can be found, by tokens. An edge is a block's tokens, so that a node stands for one block's content in its context.

    root --(1 2 3 4)--> node --(5 6 7 8)--> node
                           \\--(5 6 9)----> node       a block stored before it was full: always a leaf

Edges cannot be split inside a block as in a textbook tree, since a block is written by one request only. Instead siblings are kept
sorted: the one that agrees longest with a label stands next to where the label would be inserted, and is found by bisection.

A node without blocks stays while it leads to others, and can be given blocks again; one that leads nowhere is cut off.

What this file does not know: who holds blocks, the pool, events.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from slotwise.interfaces.kv_cache import ExtraKey, KVRequest
from slotwise_plugins.kv_cache.block import KVBlock
from slotwise_plugins.kv_cache.hashing import BlockHasher, encode_keys
from slotwise_plugins.kv_cache.radix_labels import Label


class RadixNode:
    """Content of one block after everything on the way to it."""

    __slots__ = ("block_hash", "blocks", "children", "is_attached", "label", "labels_in_order", "parent", "tree_keys")

    def __init__(self, parent: RadixNode | None, label: Label, block_hash: bytes, tree_keys: tuple[ExtraKey, ...] = ()) -> None:
        self.parent = parent
        """None for a root."""
        self.label = label
        self.tree_keys = tree_keys
        """Of a root: what its tree is found by."""
        self.block_hash = block_hash
        """Names the content for listeners and eviction policies; nothing is found by it."""
        self.children: dict[Label, RadixNode] = {}
        self.labels_in_order: list[Label] = []
        """Of the children that have blocks."""
        self.blocks: dict[KVBlock, None] = {}
        """All that hold the content, the oldest first: block tables only grow, so duplicates are never merged."""
        self.is_attached = True
        """Whether the tree leads here."""

    def neighbours(self, label: Label) -> Iterator[RadixNode]:
        """The child that sorts at or after `label`, and the one before it: between them those that agree longest with it."""
        position = bisect_left(self.labels_in_order, label)
        for place in (position, position - 1):
            if 0 <= place < len(self.labels_in_order):
                yield self.children[self.labels_in_order[place]]


class RadixTree:
    """One tree per set of keys that hold from the start. A cut-off tree costs nothing."""

    def __init__(self, hasher: BlockHasher) -> None:
        self._hasher = hasher
        self._roots: dict[tuple[ExtraKey, ...], RadixNode] = {}

    def find_root(self, keys: tuple[ExtraKey, ...]) -> RadixNode | None:
        """Root of that tree, None if it is empty."""
        return self._roots.get(keys)

    def root(self, keys: tuple[ExtraKey, ...]) -> RadixNode:
        """Root of that tree, made if need be."""
        found = self._roots.get(keys)
        if found is None:
            found = self._roots[keys] = RadixNode(None, (), self._root_hash(keys), keys)
        return found

    def _root_hash(self, keys: tuple[ExtraKey, ...]) -> bytes:
        if not keys:
            return self._hasher.root
        end = max(key.first_token + (key.num_tokens or 0) for key in keys) + 1
        is_open = b"".join(b"1" if key.num_tokens is None else b"0" for key in keys)
        return self._hasher.function.digest(self._hasher.root + is_open + encode_keys(keys, 0, end))

    def child(self, parent: RadixNode, label: Label, request: KVRequest, first_token: int) -> RadixNode:
        """The child of that label, which `request` has from `first_token` on; made if need be. `parent` is attached."""
        found = parent.children.get(label)
        if found is None:
            encoding = self._hasher.encode_part(parent.block_hash, request, first_token, len(label))
            found = parent.children[label] = RadixNode(parent, label, self._hasher.function.digest(encoding))
        return found

    def add(self, node: RadixNode, block: KVBlock) -> bool:
        """`block` holds the node's content. True if no block did before."""
        is_first = not node.blocks
        node.blocks[block] = None
        block.node = node
        if is_first and node.parent is not None:
            insort(node.parent.labels_in_order, node.label)
        return is_first

    def remove(self, block: KVBlock) -> bool:
        """Undo `add`. True if no block holds the content any more."""
        node, block.node = block.node, None
        assert node is not None, f"block {block.block_id} is not in the tree"
        del node.blocks[block]
        if node.blocks:
            return False
        if node.parent is not None:
            in_order = node.parent.labels_in_order
            del in_order[bisect_left(in_order, node.label)]
        self._cut_off(node)
        return True

    def _cut_off(self, node: RadixNode) -> None:
        """Take out nodes that hold nothing and lead nowhere, upwards from `node`."""
        while not node.blocks and not node.children and node.is_attached:
            node.is_attached = False
            parent = node.parent
            if parent is None:
                del self._roots[node.tree_keys]
                return
            del parent.children[node.label]
            node = parent

    def clear(self) -> None:
        """Only while nobody holds a block."""
        self._roots.clear()
