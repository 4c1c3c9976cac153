"""`no_prefix`: the simplest KV cache manager. A request's blocks are its own and are empty once it ends."""

from __future__ import annotations

from slotwise.interfaces.kv_cache import CachedPrefix, KVCacheSetup, KVRequest
from slotwise_plugins.kv_cache.coordinator import make_groups
from slotwise_plugins.kv_cache.pool import BlockPool
from slotwise_plugins.kv_cache.pooled_manager import PooledKVCacheManager, check_setup, make_eviction


class NoPrefixKVCacheManager(PooledKVCacheManager):
    """No hashes, no events, statistics of zero; nothing is ever idle, so the eviction policy is never asked."""

    def __init__(self, setup: KVCacheSetup) -> None:
        check_setup(setup)
        pool = BlockPool(setup.num_blocks, 0, make_eviction(setup), record_events=False)
        super().__init__(setup, pool, make_groups(setup.groups, pool, hash_granularity=1))

    def find_cached_prefix(self, request: KVRequest) -> CachedPrefix:
        return self._no_prefix

    def _reads_cache(self, request: KVRequest) -> bool:
        return False
