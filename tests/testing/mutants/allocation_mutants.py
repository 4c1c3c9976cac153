"""Managers that lose blocks, give out the wrong ones, or misreport what they did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slotwise.interfaces.kv_cache import Allocation, CachedPrefix, KVRequest

from .plain_manager import Chain, PlainKVCacheManager


class LeaksOnFree(PlainKVCacheManager):
    """The last block of a table is never given back."""

    caught_by = "freeing_gives_every_block_back_once"

    def in_eviction_order(self, table: Sequence[int]) -> Iterable[int]:
        return reversed(table[:-1])


class FreesTwice(PlainKVCacheManager):
    """A block is put into the free queue for each of its holders."""

    caught_by = "random_traffic"

    def release(self, block: int) -> None:
        self.holders[block] -= block > 0
        if block:
            self.free_queue.append(block)


class FreesAgainWhenToldTwice(PlainKVCacheManager):
    """Freeing a request that holds nothing gives its old blocks back once more."""

    caught_by = "freeing_gives_every_block_back_once"

    def __init__(self, setup):
        super().__init__(setup)
        self.remembered: dict[str, list[int]] = {}

    def free(self, request: KVRequest) -> None:
        self.free_queue += self.remembered.pop(request.request_id, [])
        held = list(self.tables.get(request.request_id, []))
        super().free(request)
        if held:
            self.remembered[request.request_id] = held


class RaisesForUnknownRequests(PlainKVCacheManager):
    """Freeing a request that never started is an error."""

    caught_by = "freeing_gives_every_block_back_once"

    def free(self, request: KVRequest) -> None:
        if request.request_id not in self.tables:
            raise KeyError(request.request_id)
        super().free(request)


class GivesOutTheNullBlock(PlainKVCacheManager):
    """Block 0 is in the pool like any other."""

    caught_by = "allocates_as_many_blocks_as_tokens_need"

    def __init__(self, setup):
        super().__init__(setup)
        self.free_queue = list(range(setup.num_blocks - 1))


class TakesAHeldBlock(PlainKVCacheManager):
    """When the pool is empty a block is taken from whoever holds it."""

    caught_by = "random_traffic"

    def take(self, num_blocks: int) -> list[int]:
        table = max(self.tables.values(), key=len, default=[])
        if len(self.free_queue) == num_blocks > 0 and table and table[-1]:
            self.free_queue[-1], table[-1] = table[-1], self.free_queue[-1]
        return super().take(num_blocks)


class GivesOneBlockTwice(PlainKVCacheManager):
    """Two entries of one table are the same block."""

    caught_by = "allocates_as_many_blocks_as_tokens_need"

    def take(self, num_blocks: int) -> list[int]:
        taken = super().take(num_blocks)
        if len(taken) > 1:
            self.free_queue.append(taken[-1])
            taken[-1] = taken[0]
        return taken


class GivesTooFewBlocks(PlainKVCacheManager):
    """Lookahead gets no slots."""

    caught_by = "allocates_as_many_blocks_as_tokens_need"

    def allocate(self, request: KVRequest, num_new_tokens: int, *, num_lookahead_tokens: int = 0, **fields) -> Allocation | None:
        return super().allocate(request, num_new_tokens, **fields)


class DoesNotCountHitsThatAreFree(PlainKVCacheManager):
    """Found blocks that nobody holds are counted as free while they are about to be used."""

    caught_by = "a_refused_allocation_changes_nothing"

    def num_needed(self, request: KVRequest, missing: int, num_held: int, reserve_whole_prompt: bool) -> int:
        return 0 if missing <= self.num_free_blocks else missing


class AcceptsNoTokens(PlainKVCacheManager):
    """An allocation for no tokens succeeds."""

    caught_by = "refuses_an_allocation_of_no_tokens"

    def check_size(self, num_new_tokens: int) -> None:
        return None


class DropsBlocksWhenRefusing(PlainKVCacheManager):
    """An allocation that does not fit takes what is left, and keeps it."""

    caught_by = "a_refused_allocation_changes_nothing"

    def refuse(self, request: KVRequest) -> Allocation | None:
        self.take(min(1, self.num_free_blocks))
        return None


class EvictsWhenRefusing(PlainKVCacheManager):
    """An allocation that does not fit throws cached blocks away."""

    caught_by = "a_refused_allocation_changes_nothing"

    def refuse(self, request: KVRequest) -> Allocation | None:
        for block in self.free_queue:
            self.forget(block)
        return None


class IgnoresReservation(PlainKVCacheManager):
    """`reserve_whole_prompt` is not looked at."""

    caught_by = "reserving_the_whole_prompt_needs_room_for_it"

    def num_needed(self, request: KVRequest, missing: int, num_held: int, reserve_whole_prompt: bool) -> int:
        return missing


class PromisesTooMuch(PlainKVCacheManager):
    """`max_request_tokens` counts the null block."""

    caught_by = "one_request_reaches_the_promised_length"

    def max_request_tokens(self) -> int:
        return min(self.setup.max_model_len, self.setup.num_blocks * self.size)


class RewritesTables(PlainKVCacheManager):
    """A cached duplicate replaces a block that was given out already."""

    caught_by = "random_traffic"

    def register(self, request: KVRequest, end: int, num_lookahead: int) -> None:
        super().register(request, end, num_lookahead)
        table = self.tables[request.request_id]
        for index in range(min(end, request.num_tokens) // self.size):
            twin = self.index.get(self.chain(request, index), table[index])
            if twin != table[index] and self.setup.enable_prefix_caching:
                self.touch(twin)
                self.release(table[index])
                table[index] = twin


class FreesTheWindowTooEarly(PlainKVCacheManager):
    """A block is given back one token before it is out of sight."""

    caught_by = "random_traffic_with_a_sliding_window"

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        window = self.group.sliding_window
        return 0 if window is None else max(0, num_computed_tokens - window + 2)


class CallsTheShortestTableCommon(PlainKVCacheManager):
    """Common prefix: as many blocks as the shortest table has, shared or not."""

    caught_by = "common_prefix_is_never_too_long"

    def num_common_prefix_blocks(self, request_ids: Iterable[str]) -> tuple[int, ...]:
        return (min((len(table) for table in self.tables.values()), default=0),)


class HidesCachedBlocks(PlainKVCacheManager):
    """Blocks that are cached but unused are not counted as free."""

    caught_by = "freeing_gives_every_block_back_once"

    @property
    def num_free_blocks(self) -> int:
        return len([block for block in self.free_queue if block not in self.chains])


class CountsLookupsThatWereNotUsed(PlainKVCacheManager):
    """Statistics count each look, also of a request that waits on."""

    caught_by = "statistics_count_the_lookups_that_were_used"

    def find_cached_prefix(self, request: KVRequest) -> CachedPrefix:
        found = super().find_cached_prefix(request)
        self.stats.requests += found.num_tokens > 0
        return found


class CountsNoHits(PlainKVCacheManager):
    """Statistics know what was asked for, not what was found."""

    caught_by = "statistics_count_the_lookups_that_were_used"

    def count(self, request: KVRequest, prefix: CachedPrefix) -> None:
        super().count(request, CachedPrefix(num_tokens=0, block_ids=((),)))


class KeepsItsStatistics(PlainKVCacheManager):
    """`take_stats` does not begin anew."""

    caught_by = "statistics_count_the_lookups_that_were_used"

    def take_stats(self):
        return self.stats


class TellsNoRemovals(PlainKVCacheManager):
    """A listener never hears that a block can no longer be found."""

    caught_by = "events_tell_what_can_be_found"

    def tell_removed(self, chain: Chain) -> None:
        return None


class TellsNoParents(PlainKVCacheManager):
    """Stored blocks come without what stands before them."""

    caught_by = "events_tell_what_can_be_found"

    def tell_stored(self, chain: Chain, index: int, block: int) -> None:
        super().tell_stored(chain, 0, block)


class RepeatsEvents(PlainKVCacheManager):
    """`take_events` yields the events since the beginning."""

    caught_by = "events_tell_what_can_be_found"

    def take_events(self):
        return list(self.events)
