"""Managers that find what they should not, or make it findable when they should not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from slotwise.interfaces.kv_cache import CachedPrefix, ExtraKey, KVRequest

from .plain_manager import NOTHING, Chain, PlainKVCacheManager


class FindsTheWholePrompt(PlainKVCacheManager):
    """The last token is found too, and nothing is left to compute."""

    caught_by = "leaves_the_last_token_to_compute"

    def hit_limit(self, request: KVRequest) -> int:
        return request.num_tokens


class CountsOneBlockTooMany(PlainKVCacheManager):
    """Says it found one block more than it names."""

    caught_by = "random_traffic"

    def find_cached_prefix(self, request: KVRequest) -> CachedPrefix:
        found = super().find_cached_prefix(request)
        longer = found.num_tokens + self.size
        return dataclasses.replace(found, num_tokens=longer) if found.num_tokens > 0 and longer < request.num_tokens else found


class MissesTheLastBlock(PlainKVCacheManager):
    """Off by one the other way: a prompt one token longer than its cached blocks finds one block too few."""

    caught_by = "finds_every_whole_cached_block"

    def hit_limit(self, request: KVRequest) -> int:
        return request.num_tokens - 2


class IgnoresKeys(PlainKVCacheManager):
    """Salt, adapter and images play no part: one tenant reads another's cache."""

    caught_by = "other_keys_are_other_content"

    def keys(self, request: KVRequest, end: int) -> tuple[ExtraKey, ...]:
        return ()


class AliasesSources(PlainKVCacheManager):
    """An adapter called x and a salt x are the same."""

    caught_by = "other_keys_are_other_content"

    def keys(self, request: KVRequest, end: int) -> tuple[ExtraKey, ...]:
        return tuple(ExtraKey(source="any", value=key.value) for key in super().keys(request, end))


class ForgetsTheSaltAfterOneBlock(PlainKVCacheManager):
    """Keys count in the block they cover, and no chain spreads them; nor do the tokens before."""

    caught_by = "random_traffic"

    def chain(self, request: KVRequest, index: int) -> Chain:
        start, end = index * self.size, (index + 1) * self.size
        keys = (key for key in super().keys(request, end) if key.num_tokens is None or key.first_token + key.num_tokens > start)
        return tuple(request.all_token_ids[:end]), tuple(keys)


class IgnoresTheTokensBefore(PlainKVCacheManager):
    """A block is known by its own tokens alone, wherever it stands."""

    caught_by = "random_traffic"

    def chain(self, request: KVRequest, index: int) -> Chain:
        tokens, keys = super().chain(request, index)
        return tokens[index * self.size :], keys


class SharesAPartlyFilledBlock(PlainKVCacheManager):
    """A block is findable while tokens are still to be written into it."""

    caught_by = "random_traffic"

    def num_registrable(self, request: KVRequest, end: int, num_lookahead: int) -> int:
        return min(self.num_blocks(end) * self.size, request.num_tokens)


class RegistersLookahead(PlainKVCacheManager):
    """Slots for what may come count as computed."""

    caught_by = "only_scheduled_tokens_become_findable"

    def num_registrable(self, request: KVRequest, end: int, num_lookahead: int) -> int:
        return min(end + num_lookahead, request.num_tokens)


class RegistersTheWholePrompt(PlainKVCacheManager):
    """Every block of the table is findable once it is given out, computed or not."""

    caught_by = "only_scheduled_tokens_become_findable"

    def num_registrable(self, request: KVRequest, end: int, num_lookahead: int) -> int:
        return min(len(self.tables[request.request_id]) * self.size, request.num_tokens)


class RegistersDrafts(PlainKVCacheManager):
    """Full blocks are found even where their last tokens are guesses: here, by the tokens known so far."""

    caught_by = "random_traffic"

    def num_registrable(self, request: KVRequest, end: int, num_lookahead: int) -> int:
        return end


class KeepsAnUndoneStep(PlainKVCacheManager):
    """What a step was to compute stays findable though it never ran."""

    caught_by = "an_undone_step_leaves_nothing_findable"

    def uncomputed(self, table: Sequence[int], num_valid: int) -> Sequence[int]:
        return ()


class KeepsAFailedStep(PlainKVCacheManager):
    """`evict_blocks` does nothing."""

    caught_by = "a_failed_step_leaves_nothing_findable"

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        return None


class ForgetsToEvictHashes(PlainKVCacheManager):
    """A block that is given out anew is still found by its old content."""

    caught_by = "evicts_the_tail_of_a_chain_before_its_head"

    def take(self, num_blocks: int) -> list[int]:
        taken = [self.free_queue.pop(0) for _ in range(num_blocks)]
        self.holders.update(taken)
        return taken


class EvictsTheHeadFirst(PlainKVCacheManager):
    """A freed chain is evicted from its start, so that nothing of it can be found any more."""

    caught_by = "evicts_the_tail_of_a_chain_before_its_head"

    def in_eviction_order(self, table: Sequence[int]) -> Iterable[int]:
        return table


class PushesOutCachedBlocksFirst(PlainKVCacheManager):
    """Cached blocks go before those nobody can find."""

    caught_by = "evicts_the_tail_of_a_chain_before_its_head"

    def release(self, block: int) -> None:
        self.holders[block] -= block > 0
        if block and not self.holders[block]:
            self.free_queue.insert(0 if block in self.chains else len(self.free_queue), block)


class IgnoresSkipReading(PlainKVCacheManager):
    """A request that must compute everything is given what is cached."""

    caught_by = "who_does_not_read_the_cache_still_fills_it"

    def reads_cache(self, request: KVRequest) -> bool:
        return self.setup.enable_prefix_caching


class CachesThoughItIsOff(PlainKVCacheManager):
    """`enable_prefix_caching` is not looked at."""

    caught_by = "random_traffic_without_prefix_caching"

    def __init__(self, setup):
        super().__init__(dataclasses.replace(setup, enable_prefix_caching=True))


class FindsOnlyOnce(PlainKVCacheManager):
    """A lookup changes what the next one finds."""

    caught_by = "finds_every_whole_cached_block"

    def find_cached_prefix(self, request: KVRequest) -> CachedPrefix:
        found = super().find_cached_prefix(request)
        for block in found.block_ids[0][-1:]:
            self.forget(block)
        return found


class ResetsWhileBlocksAreHeld(PlainKVCacheManager):
    """`reset_prefix_cache` clears the index whoever still holds blocks."""

    caught_by = "reset_forgets_everything_unless_blocks_are_held"

    def reset_prefix_cache(self) -> bool:
        self.index.clear()
        self.chains.clear()
        return True


class NeverResets(PlainKVCacheManager):
    """`reset_prefix_cache` says yes and forgets nothing."""

    caught_by = "reset_forgets_everything_unless_blocks_are_held"

    def reset_prefix_cache(self) -> bool:
        return self.num_free_blocks == self.num_usable_blocks


class FindsBlocksOutOfTheWindowOnly(PlainKVCacheManager):
    """The window is taken one token too short when looking up: a block the next token sees is not looked for."""

    caught_by = "random_traffic_with_a_sliding_window"

    def find_cached_prefix(self, request: KVRequest) -> CachedPrefix:
        found = super().find_cached_prefix(request)
        if self.group.sliding_window is None or found is NOTHING:
            return found
        visible = [0] * (len(found.block_ids[0]) - 1) + [found.block_ids[0][-1]]
        return dataclasses.replace(found, block_ids=(tuple(visible),))
