"""`radix`: the KV cache manager that reuses prefixes to the token, by a radix tree.

A hit is whole blocks, which are shared, and at most one part of a block, which the request cannot share since it has to write behind
it: that part is copied into the request's first own block before the step's forward.

    tree        (a b c d)(e f g h)      request  a b c d e f x        hit  (a b c d) shared, e f copied: 6 tokens

A copy reads what earlier steps computed, never what this step computes: a block whose writer has not passed its end is no source.

What this file does not know: tensors, how blocks are allocated and freed (`pooled_manager.py`), which cached one is evicted next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slotwise.errors import ConfigError
from slotwise.interfaces.attention import FULL
from slotwise.interfaces.kv_cache import CachedPrefix, KVCacheSetup, KVGroup, KVRequest, PartialHit
from slotwise_plugins.kv_cache.block import KVBlock
from slotwise_plugins.kv_cache.full import FullGroup
from slotwise_plugins.kv_cache.hashing import SHA256, BlockHasher
from slotwise_plugins.kv_cache.lookups import WaitingChains
from slotwise_plugins.kv_cache.pooled_manager import PooledKVCacheManager, check_setup, make_eviction
from slotwise_plugins.kv_cache.radix_blocks import RadixRequestBlocks
from slotwise_plugins.kv_cache.radix_labels import Label, TokenLabels, common_len
from slotwise_plugins.kv_cache.radix_options import RadixOptions
from slotwise_plugins.kv_cache.radix_pool import RadixPool
from slotwise_plugins.kv_cache.radix_tree import RadixNode, RadixTree
from slotwise_plugins.kv_cache.request_blocks import RequestBlocks


@dataclass(slots=True)
class _Match:
    """What the tree has of a request."""

    path: list[RadixNode]
    source: KVBlock | None = None
    num_copied: int = 0


class RadixKVCacheManager(PooledKVCacheManager):
    """One group of full attention. Raises ConfigError for any other model: a hit that ends inside a block has no meaning for a group
    that forgets."""

    copies_blocks = True

    def __init__(self, setup: KVCacheSetup) -> None:
        check_setup(setup)
        _check_groups(setup.groups)
        options = setup.options if isinstance(setup.options, RadixOptions) else RadixOptions()
        self._min_copied_tokens = options.min_copied_tokens
        self._block_size = setup.groups[0].block_size
        self._tree = RadixTree(BlockHasher(SHA256, setup.hash_seed, self._block_size))
        self._radix_pool = RadixPool(setup.num_blocks, self._tree, make_eviction(setup), record_events=setup.enable_events)
        self._group = FullGroup(setup.groups[0], self._radix_pool, hash_granularity=self._block_size)
        super().__init__(setup, self._radix_pool, (self._group,))
        self._waiting_labels = WaitingChains(lambda request: TokenLabels(request, self._block_size))

    def find_cached_prefix(self, request: KVRequest) -> CachedPrefix:
        """Whole blocks as far as the tree leads, then the sibling that agrees longest. O(prompt) for the first lookup, then O(blocks)."""
        if not self._reads_cache(request):
            return self._no_prefix
        match = self._match(request)
        if not match.path and match.source is None:
            return self._no_prefix
        partial_hits: tuple[PartialHit, ...] = ()
        if match.source is not None:
            partial_hits = (PartialHit(group=0, source_block=match.source.block_id, num_tokens=match.num_copied),)
        return CachedPrefix(
            num_tokens=len(match.path) * self._block_size + match.num_copied,
            block_ids=(tuple(_newest(node).block_id for node in match.path),),
            partial_hits=partial_hits,
        )

    def _match(self, request: KVRequest) -> _Match:
        labels, max_tokens = self._waiting_labels.get(request), request.num_tokens - 1
        labels.extend(max_tokens)
        node = self._tree.find_root(labels.tree_keys)
        match = _Match([])
        if node is None:
            return match
        for label in labels.blocks[: max_tokens // self._block_size]:
            found = node.children.get(label)
            if found is None or not found.blocks:
                break
            match.path.append(found)
            node = found
        start = len(match.path) * self._block_size
        self._match_part(match, node, labels.span(start, min(start + self._block_size, max_tokens)))
        return match

    def _match_part(self, match: _Match, parent: RadixNode, label: Label) -> None:
        for node in parent.neighbours(label):
            num_common = common_len(node.label, label)
            if num_common > match.num_copied and num_common >= self._min_copied_tokens:
                source = next((block for block in node.blocks if _is_complete(block)), None)
                if source is not None:
                    match.source, match.num_copied = source, num_common

    def _hit_blocks(self, request: KVRequest, prefix: CachedPrefix) -> list[list[KVBlock]]:
        labels = self._waiting_labels.get(request)
        labels.extend(prefix.num_tokens)
        hits = [self.pool.blocks[block_id] for block_id in prefix.block_ids[0]]
        node = self._tree.find_root(labels.tree_keys)
        for label, block in zip(labels.blocks, hits, strict=False):
            node = None if node is None else node.children.get(label)
            if node is None or block not in node.blocks:
                raise _stale(request, block)
        for hit in prefix.partial_hits:
            source, start = self.pool.blocks[hit.source_block], len(hits) * self._block_size
            label = labels.span(start, start + hit.num_tokens)
            is_there = source.node is not None and source.node.parent is node and source.node.label[: hit.num_tokens] == label
            if not is_there or not _is_complete(source):
                raise _stale(request, source)
        return [hits]

    def _use_partial_hits(self, prefix: CachedPrefix) -> None:
        for hit in prefix.partial_hits:
            self.pool.refresh(self.pool.blocks[hit.source_block])

    def _new_blocks(self, request: KVRequest) -> RequestBlocks:
        if not self.setup.enable_prefix_caching:
            return RequestBlocks(self._groups)
        labels = self._waiting_labels.get(request)
        return RadixRequestBlocks(self._group, self._radix_pool, labels, min_tail_tokens=self._min_copied_tokens)

    def _end_lookup(self, request_id: str) -> None:
        self._waiting_labels.drop(request_id)


def _newest(node: RadixNode) -> KVBlock:
    return next(reversed(node.blocks))


def _is_complete(block: KVBlock) -> bool:
    return block.writer is None or block.writer.num_computed_tokens >= block.first_token + block.num_tokens


def _stale(request: KVRequest, block: KVBlock) -> ValueError:
    return ValueError(f"The cached prefix of request {request.request_id} is stale at block {block.block_id}; look it up again.")


def _check_groups(groups: Sequence[KVGroup]) -> None:
    if len(groups) > 1 or groups[0].kind != FULL:
        kinds = ", ".join(group.kind for group in groups)
        raise ConfigError(
            f"kv_cache.use is radix, which manages one group of full attention; the model's layers form the groups: {kinds}. "
            'Use "paged", which manages every kind.',
            key="kv_cache.use",
        )
