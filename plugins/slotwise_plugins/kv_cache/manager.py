"""`paged`: the KV cache manager with fixed-size blocks and a hash-chained prefix cache.

What this file does not know: how blocks are allocated and freed (`pooled_manager.py`), which cached one is evicted next.
"""

from __future__ import annotations

import math

from slotwise.interfaces.kv_cache import CachedPrefix, KVCacheSetup, KVRequest
from slotwise_plugins.kv_cache.block import KVBlock
from slotwise_plugins.kv_cache.coordinator import make_coordinator, make_groups
from slotwise_plugins.kv_cache.hashing import SHA256, BlockHasher, HashChain, HashFunction
from slotwise_plugins.kv_cache.lookups import WaitingChains
from slotwise_plugins.kv_cache.pool import BlockPool
from slotwise_plugins.kv_cache.pooled_manager import PooledKVCacheManager, block_ids_of, check_setup, make_eviction
from slotwise_plugins.kv_cache.request_blocks import HashedRequestBlocks, RequestBlocks


class PagedKVCacheManager(PooledKVCacheManager):
    """Blocks of fixed size from one pool for all groups; whole blocks are shared.

    `hash_function`: names blocks; the default's digest is proof of equal content. With one that is not, every hit is compared with
    the tokens and keys of the whole chain, at the cost of keeping them.
    """

    def __init__(self, setup: KVCacheSetup, *, hash_function: HashFunction = SHA256) -> None:
        check_setup(setup)
        granularity = math.gcd(*(group.block_size for group in setup.groups))
        pool = BlockPool(setup.num_blocks, len(setup.groups), make_eviction(setup), record_events=setup.enable_events)
        super().__init__(setup, pool, make_groups(setup.groups, pool, granularity))
        self._coordinator = make_coordinator(self._groups, enable_prefix_caching=setup.enable_prefix_caching)
        self._hasher = BlockHasher(hash_function, setup.hash_seed, granularity)
        self._waiting_chains = WaitingChains(lambda request: HashChain(self._hasher, request))

    def find_cached_prefix(self, request: KVRequest) -> CachedPrefix:
        if not self._reads_cache(request):
            return self._no_prefix
        chain = self._waiting_chains.get(request)
        max_tokens = request.num_tokens - 1
        chain.extend(max_tokens)
        hits = self._coordinator.find(chain, max_tokens)
        num_tokens = len(hits[0]) * self._groups[0].block_size
        if num_tokens == 0:
            return self._no_prefix
        return CachedPrefix(num_tokens=num_tokens, block_ids=tuple(block_ids_of(table) for table in hits))

    def _hit_blocks(self, request: KVRequest, prefix: CachedPrefix) -> list[list[KVBlock]]:
        chain = self._waiting_chains.get(request)
        chain.extend(prefix.num_tokens)
        hits = [[self.pool.blocks[block_id] for block_id in ids] for ids in prefix.block_ids]
        for group, table in zip(self._groups, hits, strict=True):
            for index, block in enumerate(table):
                if block is not self.pool.null_block and not group.is_cached_at(block, chain, index):
                    raise ValueError(
                        f"The cached prefix of request {request.request_id} is stale at block {block.block_id}; look it up again."
                    )
        return hits

    def _new_blocks(self, request: KVRequest) -> RequestBlocks:
        if not self.setup.enable_prefix_caching:
            return RequestBlocks(self._groups)
        return HashedRequestBlocks(self._groups, self._waiting_chains.get(request))

    def _end_lookup(self, request_id: str) -> None:
        self._waiting_chains.drop(request_id)
