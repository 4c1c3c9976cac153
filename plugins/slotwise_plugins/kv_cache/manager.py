"""`paged`: the KV cache manager with fixed-size blocks and a hash-chained prefix cache.

The order of one allocation: free what left the windows, count what is needed, and only if it fits touch the hits, take new blocks,
register full ones. Almost every decode step needs none of it; two comparisons find that out.

Free order is LRU over requests, tail before head within one, blocks nobody can find first of all.

What this file does not know: tensors, policies, steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from slotwise.interfaces.kv_cache import (
    Allocation,
    CachedPrefix,
    KVCacheManager,
    KVCacheSetup,
    KVEvent,
    KVRequest,
    PrefixCacheStats,
)
from slotwise_plugins.kv_cache.block import KVBlock
from slotwise_plugins.kv_cache.capacity import max_request_tokens, num_blocks_to_come
from slotwise_plugins.kv_cache.coordinator import make_coordinator, make_groups
from slotwise_plugins.kv_cache.full import FullGroup
from slotwise_plugins.kv_cache.hashing import SHA256, BlockHasher, HashChain, HashFunction
from slotwise_plugins.kv_cache.lookups import WaitingChains, count_lookup
from slotwise_plugins.kv_cache.pool import BlockPool
from slotwise_plugins.kv_cache.request_blocks import RequestBlocks


class PagedKVCacheManager(KVCacheManager):
    """Blocks of fixed size from one pool for all groups.

    `hash_function`: names blocks; the default's digest is proof of equal content. With one that is not, every hit is compared with
    the tokens and keys of the whole chain, at the cost of keeping them.
    """

    def __init__(self, setup: KVCacheSetup, *, hash_function: HashFunction = SHA256) -> None:
        super().__init__(setup)
        _check(setup)
        granularity = math.gcd(*(group.block_size for group in setup.groups))
        self.pool = BlockPool(setup.num_blocks, len(setup.groups), record_events=setup.enable_events)
        self._groups = make_groups(setup.groups, self.pool, granularity)
        self._coordinator = make_coordinator(self._groups, enable_prefix_caching=setup.enable_prefix_caching)
        self._hasher = BlockHasher(hash_function, setup.hash_seed, granularity)
        self._requests: dict[str, RequestBlocks] = {}
        self._waiting_chains = WaitingChains(self._hasher)
        self._stats = PrefixCacheStats()
        no_ids: tuple[tuple[int, ...], ...] = ((),) * len(self._groups)
        self._no_prefix = CachedPrefix(num_tokens=0, block_ids=no_ids)
        self._no_new_blocks = Allocation(new_block_ids=no_ids)

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
        return CachedPrefix(num_tokens=num_tokens, block_ids=tuple(_ids(table) for table in hits))

    def allocate(
        self,
        request: KVRequest,
        num_new_tokens: int,
        *,
        cached_prefix: CachedPrefix | None = None,
        num_lookahead_tokens: int = 0,
        reserve_whole_prompt: bool = False,
    ) -> Allocation | None:
        held = self._requests.get(request.request_id)
        if held is not None and cached_prefix is None and num_new_tokens > 0 and not reserve_whole_prompt:
            end = request.num_computed_tokens + num_new_tokens
            if end <= held.quiet_until and end + num_lookahead_tokens <= held.num_slots:
                return self._no_new_blocks
        if num_new_tokens < 1:
            raise ValueError(
                f"Request {request.request_id} asked for slots of {num_new_tokens} tokens; an allocation is for 1 token or more."
            )
        prefix = cached_prefix or self._no_prefix
        allocation = self._grow(request, prefix, num_new_tokens, lookahead=num_lookahead_tokens, whole_prompt=reserve_whole_prompt)
        if allocation is not None and cached_prefix is not None and self._reads_cache(request):
            count_lookup(self._stats, request, cached_prefix)
        return allocation

    def _grow(
        self, request: KVRequest, prefix: CachedPrefix, num_new_tokens: int, *, lookahead: int, whole_prompt: bool
    ) -> Allocation | None:
        hits = self._hit_blocks(request, prefix)
        computed = request.num_computed_tokens + prefix.num_tokens
        end = computed + num_new_tokens
        blocks = self._requests.get(request.request_id) or RequestBlocks(self._chain_to_hold(request), self._groups)
        for table in blocks.tables:
            table.skip(computed)
        num_slots = min(end + lookahead, self.setup.max_model_len)
        missing = [table.num_missing(num_slots, hit) for table, hit in zip(blocks.tables, hits, strict=True)]
        num_needed = max(sum(missing), self._num_to_come(request, blocks, hits, computed) if whole_prompt else 0)
        if num_needed + _num_free(hits) > self.num_free_blocks:
            return None
        gained = self._take(blocks, hits, missing, computed)
        blocks.register(min(end, request.num_tokens))
        blocks.refresh()
        self._requests[request.request_id] = blocks
        self._waiting_chains.drop(request.request_id)
        return Allocation(new_block_ids=gained) if any(gained) else self._no_new_blocks

    def _hit_blocks(self, request: KVRequest, prefix: CachedPrefix) -> list[list[KVBlock]]:
        """The blocks a lookup promised. Raises ValueError if they are no longer what they were, or the request has a table already."""
        if prefix.num_tokens == 0:
            return [[] for _ in self._groups]
        if request.request_id in self._requests:
            raise ValueError(f"Request {request.request_id} holds blocks; a cached prefix can only start its table. Free it first.")
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

    def _num_to_come(self, request: KVRequest, blocks: RequestBlocks, hits: list[list[KVBlock]], computed: int) -> int:
        return num_blocks_to_come(
            blocks.tables,
            hits,
            num_tokens=request.num_tokens,
            num_computed_tokens=computed,
            max_step_tokens=self.setup.max_num_batched_tokens,
        )

    def _take(self, blocks: RequestBlocks, hits: list[list[KVBlock]], missing: list[int], computed: int) -> tuple[tuple[int, ...], ...]:
        """Ids gained per group. All hits are touched before the first block is taken, which might otherwise be one of them."""
        for table, hit in zip(blocks.tables, hits, strict=True):
            if hit:
                self.pool.touch(hit)
                table.start(hit, computed)
        gained = []
        for table, hit, num_missing in zip(blocks.tables, hits, missing, strict=True):
            taken = self.pool.take(num_missing)
            table.blocks += taken
            gained.append(_ids(hit) + _ids(taken))
        return tuple(gained)

    def free(self, request: KVRequest) -> None:
        """Give back all blocks. Call it before `num_computed_tokens` is reset: what was registered beyond it, by a step that was
        undone, holds nothing and must not be found."""
        self._waiting_chains.drop(request.request_id)
        blocks = self._requests.pop(request.request_id, None)
        if blocks is None:
            return
        for table in blocks.tables:
            table.forget_uncomputed(request.num_computed_tokens)
        self.pool.release(blocks.in_eviction_order())

    def block_ids(self, request_id: str) -> tuple[tuple[int, ...], ...]:
        blocks = self._requests.get(request_id)
        return self._no_prefix.block_ids if blocks is None else tuple(_ids(table.blocks) for table in blocks.tables)

    def num_common_prefix_blocks(self, request_ids: Iterable[str]) -> tuple[int, ...]:
        """O(answer). 0 for groups that forget: their leading blocks are null, or will be."""
        blocks = next((self._requests[request_id] for request_id in request_ids if request_id in self._requests), None)
        if blocks is None:
            return (0,) * len(self._groups)
        return tuple(self._num_shared(table.blocks) if isinstance(table.group, FullGroup) else 0 for table in blocks.tables)

    def _num_shared(self, blocks: list[KVBlock]) -> int:
        num_holders = len(self._requests)
        if num_holders == 1:
            return len(blocks)
        return next((index for index, block in enumerate(blocks) if block.ref_count != num_holders), len(blocks))

    @property
    def num_free_blocks(self) -> int:
        return len(self.pool.free_queue)

    @property
    def num_usable_blocks(self) -> int:
        return self.pool.num_usable_blocks

    def max_request_tokens(self) -> int:
        """At most `max_model_len`. Without `max_num_batched_tokens` a window is no help: one step may then compute the whole prompt."""
        return max_request_tokens(self._groups, self.num_usable_blocks, self.setup.max_model_len, self.setup.max_num_batched_tokens)

    def reset_prefix_cache(self) -> bool:
        if self.num_free_blocks != self.num_usable_blocks:
            return False
        self.pool.clear()
        self._stats.was_reset = True
        return True

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            self.pool.evict(self.pool.blocks[block_id])

    def take_events(self) -> Sequence[KVEvent]:
        return self.pool.take_events()

    def take_stats(self) -> PrefixCacheStats:
        stats, self._stats = self._stats, PrefixCacheStats()
        return stats

    def _reads_cache(self, request: KVRequest) -> bool:
        return self.setup.enable_prefix_caching and not request.skip_reading_prefix_cache

    def _chain_to_hold(self, request: KVRequest) -> HashChain | None:
        return self._waiting_chains.get(request) if self.setup.enable_prefix_caching else None


def _check(setup: KVCacheSetup) -> None:
    if not setup.groups or any(group.block_size < 1 for group in setup.groups):
        raise ValueError(f"A KV cache needs groups with block sizes of 1 or more; got {[group.block_size for group in setup.groups]}.")
    if [group.index for group in setup.groups] != list(range(len(setup.groups))):
        raise ValueError(f"KV groups must be numbered 0, 1, ... in order; got {[group.index for group in setup.groups]}.")
    if setup.num_blocks < 2:
        raise ValueError(f"A KV cache of {setup.num_blocks} blocks has none to give besides the null block; give it 2 or more.")


def _ids(blocks: Iterable[KVBlock]) -> tuple[int, ...]:
    return tuple([block.block_id for block in blocks])


def _num_free(hits: Iterable[Iterable[KVBlock]]) -> int:
    """Hits nobody holds: touching them takes them out of the free blocks."""
    return sum(block.ref_count == 0 for table in hits for block in table)
