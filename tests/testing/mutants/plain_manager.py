"""A KV cache manager as simple as the contract allows, for one group, full or windowed. Correct and slow: each mutant breaks one place.

A block is identified by all tokens and keys up to its end, written out; nothing is hashed but for the events.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

from slotwise.interfaces.attention import CHUNKED_LOCAL
from slotwise.interfaces.kv_cache import (
    AllBlocksCleared,
    Allocation,
    BlockRemoved,
    BlockStored,
    CachedPrefix,
    ExtraKey,
    KVCacheManager,
    KVCacheSetup,
    KVEvent,
    KVRequest,
    PrefixCacheStats,
)

Chain = tuple[tuple[int, ...], tuple[ExtraKey, ...]]
NOTHING = CachedPrefix(num_tokens=0, block_ids=((),))


class PlainKVCacheManager(KVCacheManager):
    """Tables are lists, the free queue is a list, the index is a dictionary."""

    caught_by: ClassVar[str]
    """Of a mutant: the case that must fail."""

    def __init__(self, setup: KVCacheSetup) -> None:
        super().__init__(setup)
        if len(setup.groups) != 1 or setup.groups[0].kind == CHUNKED_LOCAL:
            raise ValueError("manages one group, full or with a sliding window")
        self.group = setup.groups[0]
        self.size = self.group.block_size
        self.free_queue = list(range(1, setup.num_blocks))
        self.holders: Counter[int] = Counter()
        self.tables: dict[str, list[int]] = {}
        self.num_hits: dict[str, int] = {}
        self.index: dict[Chain, int] = {}
        self.chains: dict[int, Chain] = {}
        self.events: list[KVEvent] = []
        self.stats = PrefixCacheStats()

    # -- lookup --------------------------------------------------------------------------------------------------------

    def reads_cache(self, request: KVRequest) -> bool:
        return self.setup.enable_prefix_caching and not request.skip_reading_prefix_cache

    def hit_limit(self, request: KVRequest) -> int:
        return request.num_tokens - 1

    def keys(self, request: KVRequest, end: int) -> tuple[ExtraKey, ...]:
        return tuple(key for key in request.extra_keys if key.first_token < end)

    def chain(self, request: KVRequest, index: int) -> Chain:
        end = (index + 1) * self.size
        return tuple(request.all_token_ids[:end]), self.keys(request, end)

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        window = self.group.sliding_window
        return 0 if window is None else max(0, num_computed_tokens - window + 1)

    def find_cached_prefix(self, request: KVRequest) -> CachedPrefix:
        if not self.reads_cache(request):
            return NOTHING
        for num_blocks in range(self.hit_limit(request) // self.size, 0, -1):
            skipped = min(self.num_skipped_tokens(num_blocks * self.size) // self.size, num_blocks - 1)
            found = [self.index.get(self.chain(request, index)) for index in range(skipped, num_blocks)]
            if None not in found:
                skipped = self.num_skipped_tokens(num_blocks * self.size) // self.size
                blocks = (*[0] * skipped, *[block for block in found if block is not None][-(num_blocks - skipped) :])
                return CachedPrefix(num_tokens=num_blocks * self.size, block_ids=(blocks[:num_blocks],))
        return NOTHING

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
        self.check_size(num_new_tokens)
        prefix = cached_prefix or NOTHING
        hits = prefix.block_ids[0]
        table = self.tables.get(request.request_id, [])
        computed = request.num_computed_tokens + prefix.num_tokens
        self.drop_skipped(table, computed)
        end = computed + num_new_tokens
        num_slots = min(end + num_lookahead_tokens, self.setup.max_model_len)
        missing = max(0, self.num_blocks(num_slots) - len(table) - len(hits))
        needed = self.num_needed(request, missing, len(table) + len(hits), reserve_whole_prompt)
        if needed + len({block for block in hits if block and not self.holders[block]}) > self.num_free_blocks:
            return self.refuse(request)
        for block in hits:
            self.touch(block)
        gained = [*hits, *self.take(missing)]
        self.tables[request.request_id] = table + gained
        self.num_hits.setdefault(request.request_id, len(hits))
        self.register(request, end, num_lookahead_tokens)
        if cached_prefix is not None and self.reads_cache(request):
            self.count(request, prefix)
        return Allocation(new_block_ids=(tuple(gained),))

    def check_size(self, num_new_tokens: int) -> None:
        if num_new_tokens < 1:
            raise ValueError(f"asked for slots of {num_new_tokens} tokens")

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.size)

    def num_needed(self, request: KVRequest, missing: int, num_held: int, reserve_whole_prompt: bool) -> int:
        return max(missing, self.num_blocks(request.num_tokens) - num_held) if reserve_whole_prompt else missing

    def refuse(self, request: KVRequest) -> Allocation | None:
        return None

    def drop_skipped(self, table: list[int], computed: int) -> None:
        for index in reversed(range(min(self.num_skipped_tokens(computed) // self.size, len(table)))):
            if table[index]:
                self.release(table[index])
                table[index] = 0

    def touch(self, block: int) -> None:
        if block and not self.holders[block]:
            self.free_queue.remove(block)
        self.holders[block] += block > 0

    def take(self, num_blocks: int) -> list[int]:
        taken = [self.free_queue.pop(0) for _ in range(num_blocks)]
        for block in taken:
            self.forget(block)
            self.holders[block] = 1
        return taken

    def num_registrable(self, request: KVRequest, end: int, num_lookahead: int) -> int:
        return min(end, request.num_tokens)

    def register(self, request: KVRequest, end: int, num_lookahead: int) -> None:
        if not self.setup.enable_prefix_caching:
            return
        table = self.tables[request.request_id]
        for index in range(self.num_registrable(request, end, num_lookahead) // self.size):
            chain = self.chain(request, index)
            if table[index] and table[index] not in self.chains and chain not in self.index:
                self.index[chain], self.chains[table[index]] = table[index], chain
                self.tell_stored(chain, index, table[index])

    # -- giving back ---------------------------------------------------------------------------------------------------

    def free(self, request: KVRequest) -> None:
        table = self.tables.pop(request.request_id, None)
        num_hits = self.num_hits.pop(request.request_id, 0)
        if table is None:
            return
        for block in self.uncomputed(table, max(num_hits, request.num_computed_tokens // self.size)):
            self.forget(block)
        for block in self.in_eviction_order(table):
            self.release(block)

    def uncomputed(self, table: Sequence[int], num_valid: int) -> Sequence[int]:
        return table[num_valid:]

    def in_eviction_order(self, table: Sequence[int]) -> Iterable[int]:
        return reversed(table)

    def release(self, block: int) -> None:
        self.holders[block] -= block > 0
        if block and not self.holders[block]:
            self.free_queue.insert(len(self.free_queue) if block in self.chains else 0, block)

    def forget(self, block: int) -> None:
        chain = self.chains.pop(block, None)
        if chain is not None:
            del self.index[chain]
            self.tell_removed(chain)

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        for block in block_ids:
            self.forget(block)

    def reset_prefix_cache(self) -> bool:
        if self.num_free_blocks != self.num_usable_blocks:
            return False
        self.index.clear()
        self.chains.clear()
        self.stats.was_reset = True
        self.events.append(AllBlocksCleared())
        return True

    # -- facts ---------------------------------------------------------------------------------------------------------

    def block_ids(self, request_id: str) -> tuple[tuple[int, ...], ...]:
        return (tuple(self.tables.get(request_id, ())),)

    def num_common_prefix_blocks(self, request_ids: Iterable[str]) -> tuple[int, ...]:
        if not self.tables or self.group.sliding_window is not None:
            return (0,)
        columns = list(zip(*self.tables.values(), strict=False))
        return (next((index for index, column in enumerate(columns) if len(set(column)) > 1), len(columns)),)

    @property
    def num_free_blocks(self) -> int:
        return len(self.free_queue)

    @property
    def num_usable_blocks(self) -> int:
        return self.setup.num_blocks - 1

    def max_request_tokens(self) -> int:
        return min(self.setup.max_model_len, self.num_usable_blocks * self.size)

    # -- statistics and events -----------------------------------------------------------------------------------------

    def count(self, request: KVRequest, prefix: CachedPrefix) -> None:
        if request.num_preemptions:
            self.stats.preempted_requests += 1
            self.stats.preempted_query_tokens += request.num_tokens
            self.stats.preempted_hit_tokens += prefix.num_tokens
        else:
            self.stats.requests += 1
            self.stats.query_tokens += request.num_tokens
            self.stats.hit_tokens += prefix.num_tokens

    def take_stats(self) -> PrefixCacheStats:
        taken, self.stats = self.stats, PrefixCacheStats()
        return taken

    def digest(self, chain: Chain) -> bytes:
        return hashlib.sha256(repr(chain).encode()).digest()

    def tell_stored(self, chain: Chain, index: int, block: int) -> None:
        tokens, keys = chain
        start = index * self.size
        within = tuple(key for key in keys if key.num_tokens is None or key.first_token + key.num_tokens > start)
        parent = (tokens[:start], tuple(key for key in keys if key.first_token < start))
        self.events.append(
            BlockStored(
                block_hashes=(self.digest(chain),),
                parent_hash=self.digest(parent) if index else None,
                token_ids=tokens[start:],
                block_size=self.size,
                group=0,
                block_ids=(block,),
                extra_keys=(within,),
            )
        )

    def tell_removed(self, chain: Chain) -> None:
        self.events.append(BlockRemoved(block_hashes=(self.digest(chain),), group=0))

    def take_events(self) -> Sequence[KVEvent]:
        taken, self.events = self.events, []
        return taken
