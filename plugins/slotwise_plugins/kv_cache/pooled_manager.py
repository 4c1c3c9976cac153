"""Base of the managers that give out fixed-size blocks from one pool: how tables grow, shrink and end. What is found is the subclass's.

The order of one allocation: free what left the windows, count what is needed, and only if it fits touch the hits, take new blocks,
make full ones findable. Almost every decode step needs none of it; two comparisons find that out.

Free order: blocks nobody can find first, then as the eviction policy says; a request gives its blocks back from the tail.

What this file does not know: hashes, trees, tensors, scheduling policies, steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slotwise.interfaces.eviction import EvictionPolicy, EvictionSetup
from slotwise.interfaces.kv_cache import (
    Allocation,
    BlockCopy,
    CachedPrefix,
    KVCacheManager,
    KVCacheSetup,
    KVEvent,
    KVRequest,
    PrefixCacheStats,
)
from slotwise_plugins.eviction.lru import LruEviction
from slotwise_plugins.kv_cache.block import KVBlock
from slotwise_plugins.kv_cache.block_group import BlockGroup
from slotwise_plugins.kv_cache.capacity import max_request_tokens, num_blocks_to_come
from slotwise_plugins.kv_cache.full import FullGroup
from slotwise_plugins.kv_cache.lookups import count_lookup
from slotwise_plugins.kv_cache.pool import BlockPool
from slotwise_plugins.kv_cache.request_blocks import RequestBlocks


class PooledKVCacheManager(KVCacheManager):
    """Subclasses say what is found (`find_cached_prefix`, `_hit_blocks`) and what becomes findable (`_new_blocks`)."""

    def __init__(self, setup: KVCacheSetup, pool: BlockPool, groups: Sequence[BlockGroup]) -> None:
        super().__init__(setup)
        self.pool = pool
        self._groups = tuple(groups)
        self._requests: dict[str, RequestBlocks] = {}
        self._stats = PrefixCacheStats()
        no_ids: tuple[tuple[int, ...], ...] = ((),) * len(self._groups)
        self._no_prefix = CachedPrefix(num_tokens=0, block_ids=no_ids)
        self._no_new_blocks = Allocation(new_block_ids=no_ids)

    # -- what a subclass decides ---------------------------------------------------------------------------------------

    def _hit_blocks(self, request: KVRequest, prefix: CachedPrefix) -> list[list[KVBlock]]:
        """Per group the whole blocks of a prefix that is not empty. Raises ValueError if they are no longer what the lookup promised."""
        raise ValueError(f"{type(self).__name__} finds no cached prefixes; request {request.request_id} came with one.")

    def _new_blocks(self, request: KVRequest) -> RequestBlocks:
        """Empty tables for a request that holds nothing yet."""
        return RequestBlocks(self._groups)

    def _use_partial_hits(self, prefix: CachedPrefix) -> None:
        """The prefix is about to be used; before new blocks are taken."""

    def _end_lookup(self, request_id: str) -> None:
        """The request holds blocks now, or is gone: nothing kept for its lookups is needed."""

    # -- allocation ----------------------------------------------------------------------------------------------------

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
            return self._extend(held, request, end, num_lookahead_tokens)
        if num_new_tokens < 1:
            raise ValueError(
                f"Request {request.request_id} asked for slots of {num_new_tokens} tokens; an allocation is for 1 token or more."
            )
        prefix = cached_prefix or self._no_prefix
        allocation = self._grow(request, prefix, num_new_tokens, lookahead=num_lookahead_tokens, whole_prompt=reserve_whole_prompt)
        if allocation is not None and cached_prefix is not None and self._reads_cache(request):
            count_lookup(self._stats, request, cached_prefix)
        return allocation

    def _extend(self, blocks: RequestBlocks, request: KVRequest, end: int, lookahead: int) -> Allocation | None:
        """`_grow` for a request that holds blocks and goes on: about two steps of each `block_size` come here."""
        for table in blocks.tables:
            table.skip(request.num_computed_tokens)
        allocation = self._no_new_blocks
        num_slots = min(end + lookahead, self.setup.max_model_len)
        if num_slots > blocks.num_slots:
            missing = [table.num_missing(num_slots, ()) for table in blocks.tables]
            if sum(missing) > self.num_free_blocks:
                return None
            allocation = Allocation(new_block_ids=self._take(blocks, missing))
        blocks.register(min(end, request.num_tokens))
        blocks.refresh()
        return allocation

    def _grow(
        self, request: KVRequest, prefix: CachedPrefix, num_new_tokens: int, *, lookahead: int, whole_prompt: bool
    ) -> Allocation | None:
        hits = self._checked_hits(request, prefix)
        computed = request.num_computed_tokens + prefix.num_tokens
        end = computed + num_new_tokens
        blocks = self._requests.get(request.request_id) or self._new_blocks(request)
        for table in blocks.tables:
            table.skip(computed)
        num_slots = min(end + lookahead, self.setup.max_model_len)
        missing = [table.num_missing(num_slots, hit) for table, hit in zip(blocks.tables, hits, strict=True)]
        num_needed = max(sum(missing), self._num_to_come(request, blocks, hits, computed) if whole_prompt else 0)
        if num_needed + _num_free(hits) > self.num_free_blocks:
            return None
        self._use_partial_hits(prefix)
        self._touch(blocks, hits, computed)
        taken = self._take(blocks, missing)
        gained = tuple([block_ids_of(hit) + new for hit, new in zip(hits, taken, strict=True)])
        blocks.register(min(end, request.num_tokens))
        blocks.refresh()
        self._requests[request.request_id] = blocks
        self._end_lookup(request.request_id)
        return Allocation(new_block_ids=gained, block_copies=_copies(prefix, gained)) if any(gained) else self._no_new_blocks

    def _checked_hits(self, request: KVRequest, prefix: CachedPrefix) -> list[list[KVBlock]]:
        if prefix.num_tokens == 0:
            return [[] for _ in self._groups]
        if request.request_id in self._requests:
            raise ValueError(f"Request {request.request_id} holds blocks; a cached prefix can only start its table. Free it first.")
        return self._hit_blocks(request, prefix)

    def _num_to_come(self, request: KVRequest, blocks: RequestBlocks, hits: list[list[KVBlock]], computed: int) -> int:
        return num_blocks_to_come(
            blocks.tables,
            hits,
            num_tokens=request.num_tokens,
            num_computed_tokens=computed,
            max_step_tokens=self.setup.max_num_batched_tokens,
        )

    def _touch(self, blocks: RequestBlocks, hits: list[list[KVBlock]], computed: int) -> None:
        """Start the tables with the blocks that were found. All are touched before the first block is taken, which might otherwise be one
        of them."""
        for table, hit in zip(blocks.tables, hits, strict=True):
            if hit:
                self.pool.touch(hit)
                table.start(hit, computed)

    def _take(self, blocks: RequestBlocks, missing: list[int]) -> tuple[tuple[int, ...], ...]:
        """Lengthen the tables by new blocks. Returns their ids per group."""
        gained = []
        for table, num_missing in zip(blocks.tables, missing, strict=True):
            taken = self.pool.take(num_missing)
            table.blocks += taken
            gained.append(block_ids_of(taken))
        return tuple(gained)

    def free(self, request: KVRequest) -> None:
        """Give back all blocks. Call it before `num_computed_tokens` is reset: what was registered beyond it, by a step that was
        undone, holds nothing and must not be found."""
        self._end_lookup(request.request_id)
        blocks = self._requests.pop(request.request_id, None)
        if blocks is None:
            return
        blocks.settle(request.num_computed_tokens)
        self.pool.release(blocks.in_eviction_order())

    # -- facts ---------------------------------------------------------------------------------------------------------

    def block_ids(self, request_id: str) -> tuple[tuple[int, ...], ...]:
        blocks = self._requests.get(request_id)
        return self._no_prefix.block_ids if blocks is None else tuple(block_ids_of(table.blocks) for table in blocks.tables)

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
        return self.pool.num_free_blocks

    @property
    def num_usable_blocks(self) -> int:
        return self.pool.num_usable_blocks

    def max_request_tokens(self) -> int:
        """At most `max_model_len`. Without `max_num_batched_tokens` a window is no help: one step may then compute the whole prompt."""
        return max_request_tokens(self._groups, self.num_usable_blocks, self.setup.max_model_len, self.setup.max_num_batched_tokens)

    # -- the cache as a whole ------------------------------------------------------------------------------------------

    def reset_prefix_cache(self) -> bool:
        if self.num_free_blocks != self.num_usable_blocks:
            return False
        self.pool.clear()
        self._stats.was_reset = True
        return True

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            block = self.pool.blocks[block_id]
            block.is_spoiled = True
            self.pool.evict(block)

    def take_events(self) -> Sequence[KVEvent]:
        return self.pool.take_events()

    def take_stats(self) -> PrefixCacheStats:
        stats, self._stats = self._stats, PrefixCacheStats()
        return stats

    def _reads_cache(self, request: KVRequest) -> bool:
        return self.setup.enable_prefix_caching and not request.skip_reading_prefix_cache


def check_setup(setup: KVCacheSetup) -> None:
    """Raises ValueError for a setup no pool can be made for."""
    if not setup.groups or any(group.block_size < 1 for group in setup.groups):
        raise ValueError(f"A KV cache needs groups with block sizes of 1 or more; got {[group.block_size for group in setup.groups]}.")
    if [group.index for group in setup.groups] != list(range(len(setup.groups))):
        raise ValueError(f"KV groups must be numbered 0, 1, ... in order; got {[group.index for group in setup.groups]}.")
    if setup.num_blocks < 2:
        raise ValueError(f"A KV cache of {setup.num_blocks} blocks has none to give besides the null block; give it 2 or more.")


def make_eviction(setup: KVCacheSetup) -> EvictionPolicy:
    """The policy the engine chose; `lru` where a manager is made without one."""
    num_blocks = setup.num_blocks - 1
    return LruEviction(EvictionSetup(num_blocks=num_blocks)) if setup.eviction is None else setup.eviction(num_blocks)


def block_ids_of(blocks: Iterable[KVBlock]) -> tuple[int, ...]:
    """Their ids, in order."""
    return tuple([block.block_id for block in blocks])


def _num_free(hits: Iterable[Iterable[KVBlock]]) -> int:
    """Hits nobody holds: touching them takes them out of the free blocks."""
    return sum(block.ref_count == 0 for table in hits for block in table)


def _copies(prefix: CachedPrefix, gained: Sequence[Sequence[int]]) -> tuple[BlockCopy, ...]:
    """From each partly hit block into the first new one. A source that was itself taken for that needs no copy."""
    pairs = [(hit, gained[hit.group][len(prefix.block_ids[hit.group])]) for hit in prefix.partial_hits]
    return tuple(
        BlockCopy(group=hit.group, source_block=hit.source_block, target_block=target, num_tokens=hit.num_tokens)
        for hit, target in pairs
        if hit.source_block != target
    )
