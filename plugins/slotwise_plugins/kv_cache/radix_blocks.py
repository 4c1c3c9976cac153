"""The blocks of one request under the `radix` manager: its path through the tree, and the last block, which may be found half full.

    table   | shared | own, full: hang in the tree | filling: hangs once the request gives it back |
    path    | nodes of the whole blocks, one per block                                             |

What this file does not know: lookups, the other requests.
"""

from __future__ import annotations

from slotwise.interfaces.kv_cache import BlockStored
from slotwise_plugins.kv_cache.block import KVBlock
from slotwise_plugins.kv_cache.block_group import BlockGroup
from slotwise_plugins.kv_cache.block_table import consecutive_runs
from slotwise_plugins.kv_cache.hashing import keys_within
from slotwise_plugins.kv_cache.radix_labels import Label, TokenLabels
from slotwise_plugins.kv_cache.radix_pool import RadixPool
from slotwise_plugins.kv_cache.radix_tree import RadixNode
from slotwise_plugins.kv_cache.request_blocks import RequestBlocks


class RadixRequestBlocks(RequestBlocks):
    """One table, of full attention."""

    __slots__ = ("_labels", "_min_tail_tokens", "_path", "_pool")

    makes_findable = True

    def __init__(self, group: BlockGroup, pool: RadixPool, labels: TokenLabels, *, min_tail_tokens: int) -> None:
        """`min_tail_tokens`: a last block of fewer is not kept."""
        super().__init__((group,))
        self._pool = pool
        self._labels = labels
        self._path: list[RadixNode] = []
        self._min_tail_tokens = min_tail_tokens

    def register(self, num_tokens: int) -> None:
        table = self.tables[0]
        if not self._path:
            self._path += [_node_of(block) for block in table.blocks[: table.num_hits]]
        first, last = table.num_registered, num_tokens // table.group.block_size
        if first >= last:
            return
        self._labels.extend(num_tokens)
        became_findable = [index for index in range(first, last) if self._hang(index, self._labels.blocks[index])]
        table.num_registered = last
        if self._pool.record_events:
            self._pool.events += [self._stored(run) for run in consecutive_runs(became_findable)]

    def settle(self, num_computed_tokens: int) -> None:
        """Also lets the computed start of the last block be found, since nobody will fill it any more."""
        super().settle(num_computed_tokens)
        table = self.tables[0]
        for block in table.blocks[table.num_hits : table.num_registered]:
            block.writer = None
        num_valid = min(num_computed_tokens, self._labels.request.num_tokens - 1)  # the last token may still be under way
        index, num_tail = divmod(num_valid, table.group.block_size)
        if num_tail >= self._min_tail_tokens and index <= table.num_registered and not table.blocks[index].is_spoiled:
            self._keep_tail(index, self._labels.span(num_valid - num_tail, num_valid))

    def _keep_tail(self, index: int, label: Label) -> None:
        """Not if what precedes it cannot be found, or another child begins with the same tokens."""
        if index and not self._path[index - 1].blocks:
            return
        if any(_begins_with(node.label, label) for node in self._parent(index).neighbours(label)):
            return
        del self._path[index:]
        if self._hang(index, label) and self._pool.record_events:
            self._pool.events.append(self._stored(range(index, index + 1)))
        self.tables[0].blocks[index].writer = None

    def _hang(self, index: int, label: Label) -> bool:
        """Make the block at `index` findable and its node the end of the path; True if that content could not be found before. A sibling
        that was stored half full and says less is given up."""
        parent, block = self._parent(index), self.tables[0].blocks[index]
        group, request = self.tables[0].group, self._labels.request
        first_token = index * group.block_size
        node = self._pool.tree.child(parent, label, request, first_token)
        self._path.append(node)
        shorter = [other for other in parent.neighbours(label) if other is not node and _begins_with(label, other.label)]
        block.writer = request
        is_new = self._pool.hang(block, node, first_token=first_token, num_bytes=group.bytes_per_block)
        for half_full in [held for other in shorter for held in other.blocks]:
            self._pool.evict(half_full)
        return is_new

    def _parent(self, index: int) -> RadixNode:
        """Node before the block at `index`. If it was cut off, because its blocks were made unfindable, the path is made anew."""
        tree, size, request = self._pool.tree, self.tables[0].group.block_size, self._labels.request
        if index and self._path[index - 1].is_attached:
            return self._path[index - 1]
        parent = tree.root(self._labels.tree_keys)
        self._labels.extend(index * size)
        for place, label in enumerate(self._labels.blocks[:index]):
            parent = self._path[place] = tree.child(parent, label, request, place * size)
        return parent

    def _stored(self, run: range) -> BlockStored:
        """The event for the blocks at `run`, of which only a single one may be half full."""
        nodes, table, request = self._path[run.start : run.stop], self.tables[0], self._labels.request
        size = len(nodes[0].label)
        first_token = run.start * table.group.block_size
        ends = [(first_token + place * size, first_token + (place + 1) * size) for place in range(len(nodes))]
        return BlockStored(
            block_hashes=tuple(node.block_hash for node in nodes),
            parent_hash=table.blocks[run.start].parent_hash,
            token_ids=tuple(request.all_token_ids[first_token : ends[-1][1]]),
            block_size=size,
            group=table.group.index,
            block_ids=tuple(table.blocks[index].block_id for index in run),
            extra_keys=tuple(keys_within(request.extra_keys, start, end) for start, end in ends),
        )


def _node_of(block: KVBlock) -> RadixNode:
    assert block.node is not None, f"block {block.block_id} was found but hangs nowhere"
    return block.node


def _begins_with(label: Label, start: Label) -> bool:
    return label[: len(start)] == start
