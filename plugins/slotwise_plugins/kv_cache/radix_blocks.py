"""The blocks of one request under the `radix` manager: its path through the tree, and the last block, which may be found half full.

    table   | shared | own, full: hang in the tree | filling: hangs once the request gives it back |
    path    | nodes of the whole blocks, one per block                                             |

What this file does not know: lookups, the other requests.
"""

from __future__ import annotations

from slotwise.interfaces.kv_cache import BlockStored
from slotwise_plugins.kv_cache.block import KVBlock
from slotwise_plugins.kv_cache.block_group import BlockGroup
from slotwise_plugins.kv_cache.hashing import keys_within
from slotwise_plugins.kv_cache.radix_labels import Label, TokenLabels
from slotwise_plugins.kv_cache.radix_pool import RadixPool
from slotwise_plugins.kv_cache.radix_tree import RadixNode
from slotwise_plugins.kv_cache.request_blocks import RequestBlocks


class RadixRequestBlocks(RequestBlocks):
    """One table, of full attention."""

    __slots__ = ("_labels", "_min_tail_tokens", "_path", "_pool")

    makes_findable = True

    def __init__(self, group: BlockGroup, pool: RadixPool, labels: TokenLabels, path: list[RadixNode], min_tail_tokens: int) -> None:
        """`path`: nodes of the whole blocks the request starts with. `min_tail_tokens`: a last block of fewer is not kept."""
        super().__init__((group,))
        self._pool = pool
        self._labels = labels
        self._path = path
        self._min_tail_tokens = min_tail_tokens

    def register(self, num_tokens: int) -> None:
        table = self.tables[0]
        size, first = table.group.block_size, table.num_registered
        self._labels.extend(num_tokens)
        for index in range(first, num_tokens // size):
            node = self._hang(table.blocks[index], index, self._labels.blocks[index])
            table.blocks[index].writer = self._labels.request
            self._path.append(node)
            table.num_registered = index + 1

    def settle(self, num_computed_tokens: int) -> None:
        """Also lets the computed start of the last block be found, since nobody will fill it any more."""
        super().settle(num_computed_tokens)
        table, request = self.tables[0], self._labels.request
        for block in table.blocks[table.num_hits : table.num_registered]:
            block.writer = None
        num_valid = min(num_computed_tokens, request.num_tokens)
        index, num_tail = divmod(num_valid, table.group.block_size)
        if num_tail >= max(1, self._min_tail_tokens) and index < len(table.blocks):
            self._keep_tail(table.blocks[index], index, num_tail)

    def _keep_tail(self, block: KVBlock, index: int, num_tail: int) -> None:
        """Not if the block cannot be trusted, or what precedes it cannot be found, or another child begins with the same tokens."""
        parent = self._parent(index)
        if block.is_spoiled or (index > 0 and not parent.blocks):
            return
        start = index * self.tables[0].group.block_size
        label = self._labels.span(start, start + num_tail)
        if not any(_begins_with(node.label, label) for node in parent.neighbours(label)):
            self._hang(block, index, label)

    def _hang(self, block: KVBlock, index: int, label: Label) -> RadixNode:
        """Make `block` findable; a half-full sibling that says less is given up."""
        parent = self._parent(index)
        group, request = self.tables[0].group, self._labels.request
        first_token = index * group.block_size
        node = self._pool.tree.child(parent, label, request, first_token)
        shorter = [other for other in parent.neighbours(label) if other is not node and _begins_with(label, other.label)]
        if self._pool.hang(block, node, first_token=first_token, num_bytes=group.bytes_per_block) and self._pool.record_events:
            self._pool.events.append(self._stored(block, node, first_token))
        for half_full in [held for other in shorter for held in other.blocks]:
            self._pool.evict(half_full)
        return node

    def _parent(self, index: int) -> RadixNode:
        """Node before the block at `index`. If it was cut off, because its blocks were made unfindable, the path is made anew."""
        tree, size = self._pool.tree, self.tables[0].group.block_size
        parent = self._path[index - 1] if index else tree.root(self._labels.tree_keys)
        if parent.is_attached:
            return parent
        self._labels.extend(index * size)
        parent, path = tree.root(self._labels.tree_keys), list[RadixNode]()
        for place, label in enumerate(self._labels.blocks[:index]):
            parent = tree.child(parent, label, self._labels.request, place * size)
            path.append(parent)
        self._path[:index] = path
        return parent

    def _stored(self, block: KVBlock, node: RadixNode, first_token: int) -> BlockStored:
        request, end = self._labels.request, first_token + len(node.label)
        return BlockStored(
            block_hashes=(node.block_hash,),
            parent_hash=block.parent_hash,
            token_ids=tuple(request.all_token_ids[first_token:end]),
            block_size=len(node.label),
            group=0,
            block_ids=(block.block_id,),
            extra_keys=(keys_within(request.extra_keys, first_token, end),),
        )


def _begins_with(label: Label, start: Label) -> bool:
    return label[: len(start)] == start
