"""The `paged` manager: worked numbers, lifecycles, and the faults other engines had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slotwise.engine.request import Request
from slotwise.interfaces.kv_cache import AllBlocksCleared, BlockRemoved, BlockStored, CachedPrefix, ExtraKey
from slotwise_plugins.eviction.lru import LruEviction
from slotwise_plugins.kv_cache.hashing import SHA256, BlockHasher, HashChain, HashFunction
from slotwise_plugins.kv_cache.lookups import MAX_WAITING_CHAINS, WaitingChains
from slotwise_plugins.kv_cache.manager import PagedKVCacheManager

Make = Callable[..., Any]
Compute = Callable[[PagedKVCacheManager, Request], int]
CONSTANT_HASH = HashFunction(name="constant", digest=lambda data: b"same", is_proof=False)
LIFECYCLE_PROMPT = [101, 2023, 3186, 2877, 13]


def table(manager: PagedKVCacheManager, request: Request, group: int = 0) -> list[int]:
    return list(manager.block_ids(request.request_id)[group])


def ref_counts(manager: PagedKVCacheManager, request: Request) -> list[int]:
    return [manager.pool.blocks[block_id].ref_count for block_id in table(manager, request)]


def free_ids(manager: PagedKVCacheManager) -> list[int]:
    assert isinstance(manager.pool.policy, LruEviction)
    return [block.block_id for block in manager.pool.empty_queue] + list(manager.pool.policy)


def decode(manager: PagedKVCacheManager, request: Request, token: int = 7) -> tuple[int, ...]:
    """Append one token and compute it; ids gained in group 0."""
    request.all_token_ids.append(token)
    allocation = manager.allocate(request, 1)
    assert allocation is not None
    request.num_computed_tokens += 1
    return allocation.new_block_ids[0]


def test_lifecycle_first_prefill_fills_the_first_usable_blocks(make_manager: Make, make_request: Make) -> None:
    manager, request = make_manager(), make_request("a", LIFECYCLE_PROMPT)
    allocation = manager.allocate(request, 5, cached_prefix=manager.find_cached_prefix(request))
    assert allocation.new_block_ids == ((1, 2),)
    first = table(manager, request)[0]
    slots = [table(manager, request)[position // 4] * 4 + position % 4 for position in range(5)]
    assert [slot - first * 4 for slot in slots] == [0, 1, 2, 3, 4]


def test_lifecycle_decode_takes_a_block_only_when_the_last_one_is_full(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager, request = make_manager(), make_request("a", LIFECYCLE_PROMPT)
    compute(manager, request)
    assert [decode(manager, request) for _ in range(5)] == [(), (), (), (3,), ()]
    assert table(manager, request) == [1, 2, 3]


def test_lifecycle_prefix_reuse_shares_the_block_while_its_holder_runs(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager = make_manager()
    first, second = make_request("a", LIFECYCLE_PROMPT), make_request("b", [*LIFECYCLE_PROMPT[:4], 99])
    compute(manager, first)
    assert compute(manager, second) == 4
    assert table(manager, second) == [1, 3]
    assert ref_counts(manager, second) == [2, 1]


def test_lifecycle_prefix_reuse_takes_the_block_out_of_the_middle_of_the_free_queue(
    make_manager: Make, make_request: Make, compute: Compute
) -> None:
    manager = make_manager(num_usable_blocks=5)
    first, other = make_request("a", LIFECYCLE_PROMPT), make_request("c", [5, 6, 7, 8])
    compute(manager, first)
    manager.free(first)
    compute(manager, other)
    manager.free(other)
    assert free_ids(manager) == [3, 4, 5, 1, 2]
    second = make_request("b", [*LIFECYCLE_PROMPT[:4], 99])
    assert compute(manager, second) == 4
    assert ref_counts(manager, second) == [1, 1]
    assert free_ids(manager) == [4, 5, 2]


def test_freed_chain_is_queued_tail_first(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager, request = make_manager(num_usable_blocks=5), make_request("a", range(12))
    compute(manager, request)
    manager.free(request)
    assert free_ids(manager) == [4, 5, 3, 2, 1]


def test_blocks_that_cannot_be_found_are_taken_first(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager, request = make_manager(num_usable_blocks=4), make_request("a", range(10))
    compute(manager, request)
    manager.free(request)
    assert free_ids(manager) == [3, 4, 2, 1]


@pytest.mark.parametrize(("num_tokens", "hit"), [(4, 0), (8, 4), (9, 8), (5, 4), (1, 0)])
def test_the_last_token_is_never_cached(make_manager: Make, make_request: Make, compute: Compute, num_tokens: int, hit: int) -> None:
    manager = make_manager()
    prompt = list(range(num_tokens))
    first = make_request("a", prompt)
    compute(manager, first)
    assert manager.find_cached_prefix(make_request("b", prompt)).num_tokens == hit
    manager.free(first)
    again = make_request("c", prompt)
    assert compute(manager, again) == hit


@pytest.mark.parametrize("block_size", [1, 16, 48])
def test_whole_prompt_cached_leaves_one_block_to_compute(
    make_manager: Make, make_group: Make, make_request: Make, compute: Compute, block_size: int
) -> None:
    manager = make_manager(make_group(block_size=block_size), num_usable_blocks=500)
    prompt = list(range(2 * block_size))
    for run, expected in enumerate([0, block_size, block_size]):
        request = make_request(f"r{run}", prompt)
        assert compute(manager, request) == expected
        manager.free(request)
    assert manager.num_free_blocks == manager.num_usable_blocks


def test_tail_of_a_chain_is_evicted_before_its_head(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager = make_manager(num_usable_blocks=6)
    first, unrelated = make_request("a", range(12)), make_request("b", range(100, 116))
    compute(manager, first)
    third_block = table(manager, first)[2]
    manager.free(first)
    compute(manager, unrelated)
    assert table(manager, unrelated) == [4, 5, 6, third_block]
    assert manager.find_cached_prefix(make_request("c", range(13))).num_tokens == 8


def test_older_freed_chain_is_evicted_first(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager = make_manager(num_usable_blocks=4)
    old, new = make_request("old", range(8)), make_request("new", range(50, 58))
    compute(manager, old)
    compute(manager, new)
    manager.free(old)
    manager.free(new)
    compute(manager, make_request("c", range(100, 108)))
    assert manager.find_cached_prefix(make_request("d", range(9))).num_tokens == 0
    assert manager.find_cached_prefix(make_request("e", range(50, 59))).num_tokens == 8


def test_colliding_hashes_are_told_apart_by_content(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager = make_manager(hash_function=CONSTANT_HASH)
    compute(manager, make_request("a", [1, 2, 3, 4, 5, 6, 7, 8, 0]))
    assert compute(manager, make_request("b", [9, 9, 9, 9, 9, 9, 9, 9, 0])) == 0
    assert manager.find_cached_prefix(make_request("c", [1, 2, 3, 4, 5, 6, 7, 8, 9])).num_tokens == 8
    same_tokens_other_past = make_request("d", [9, 9, 9, 9, 5, 6, 7, 8, 0])
    assert manager.find_cached_prefix(same_tokens_other_past).num_tokens == 4


def test_adapter_loaded_anew_under_its_name_shares_nothing(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager = make_manager()

    def request(request_id: str, load: str | None) -> Request:
        keys = [] if load is None else [ExtraKey(source="adapter", value=load)]
        return make_request(request_id, range(9), extra_keys=keys)

    assert compute(manager, request("a", "x#1")) == 0
    assert compute(manager, request("b", "x#2")) == 0
    assert compute(manager, request("c", None)) == 0
    assert compute(manager, request("d", "x#1")) == 8


def test_window_frees_blocks_no_token_will_see_again(make_manager: Make, make_group: Make, make_request: Make) -> None:
    manager = make_manager(make_group(kind="sliding_window", sliding_window=6, block_size=2), num_usable_blocks=8)
    request = make_request("a", range(11))
    assert manager.allocate(request, 10).new_block_ids == ((1, 2, 3, 4, 5),)
    request.num_computed_tokens = 10
    assert manager.allocate(request, 1).new_block_ids == ((6,),)
    assert table(manager, request) == [0, 0, 3, 4, 5, 6]
    assert free_ids(manager) == [7, 8, 2, 1]


def test_window_blocks_are_freed_even_if_the_rest_does_not_fit(make_manager: Make, make_group: Make, make_request: Make) -> None:
    manager = make_manager(make_group(kind="sliding_window", sliding_window=3, block_size=2), num_usable_blocks=4)
    request = make_request("a", range(20))
    manager.allocate(request, 8)
    request.num_computed_tokens = 8
    assert manager.allocate(request, 12) is None
    assert table(manager, request) == [0, 0, 0, 4]
    assert manager.num_free_blocks == 3
    assert manager.allocate(request, 6) is not None


def test_groups_take_from_one_pool_and_hit_together(make_manager: Make, make_group: Make, make_request: Make, compute: Compute) -> None:
    manager = make_manager(make_group(0, block_size=2), make_group(1, block_size=4, kind="sliding_window", sliding_window=5))
    request = make_request("a", range(9))
    compute(manager, request)
    ids = table(manager, request, 0) + table(manager, request, 1)
    assert len(set(ids)) == len(ids) == 5 + 3
    prefix = manager.find_cached_prefix(make_request("b", range(9)))
    assert prefix.num_tokens == 8
    assert prefix.block_ids == (tuple(table(manager, request, 0)[:4]), (0, table(manager, request, 1)[1]))


def test_groups_are_evicted_by_position_not_one_after_the_other(
    make_manager: Make, make_group: Make, make_request: Make, compute: Compute
) -> None:
    manager = make_manager(make_group(0), make_group(1), num_usable_blocks=6)
    request = make_request("a", range(12))
    compute(manager, request)
    manager.free(request)
    compute(manager, make_request("b", [77, 78]))
    assert manager.find_cached_prefix(make_request("c", range(13))).num_tokens == 8


def test_hits_in_the_free_queue_count_as_taken(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager = make_manager(num_usable_blocks=4)
    first, holder = make_request("a", range(8)), make_request("h", [50, 51, 52])
    compute(manager, first)
    compute(manager, holder)
    manager.free(first)
    request = make_request("b", [*range(8), *range(20, 26)])
    prefix = manager.find_cached_prefix(request)
    assert (prefix.num_tokens, manager.num_free_blocks) == (8, 3)
    before = free_ids(manager)
    assert manager.allocate(request, 6, cached_prefix=prefix) is None
    assert free_ids(manager) == before
    assert table(manager, request) == []
    assert manager.allocate(request, 4, cached_prefix=prefix).new_block_ids == ((1, 2, 4),)


def test_a_later_request_of_the_same_step_hits_blocks_registered_in_it(make_manager: Make, make_request: Make) -> None:
    manager = make_manager()
    manager.allocate(make_request("a", range(9)), 9)
    assert manager.find_cached_prefix(make_request("b", range(9))).num_tokens == 8


def test_drafts_and_lookahead_get_slots_but_are_not_findable(make_manager: Make, make_request: Make) -> None:
    manager, request = make_manager(), make_request("a", range(3))
    assert len(manager.allocate(request, 5, num_lookahead_tokens=4).new_block_ids[0]) == 3
    assert not manager.pool.indexes[0].hashes()
    request.num_computed_tokens = 3
    request.all_token_ids.append(3)
    manager.allocate(request, 2, num_lookahead_tokens=4)
    assert len(manager.pool.indexes[0].hashes()) == 1


def test_lookahead_stops_at_the_longest_sequence(make_manager: Make, make_request: Make) -> None:
    manager, request = make_manager(max_model_len=8), make_request("a", range(8))
    assert len(manager.allocate(request, 8, num_lookahead_tokens=8).new_block_ids[0]) == 2


def test_blocks_of_a_step_that_was_undone_cannot_be_found(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager = make_manager()
    compute(manager, make_request("a", range(5)))
    victim = make_request("v", range(13))
    manager.allocate(victim, 9, cached_prefix=manager.find_cached_prefix(victim))
    victim.num_computed_tokens = 4
    manager.free(victim)
    assert manager.find_cached_prefix(make_request("b", range(13))).num_tokens == 4


def test_blocks_of_a_failed_step_cannot_be_found_after_eviction(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager, request = make_manager(num_usable_blocks=4), make_request("a", range(9))
    compute(manager, request)
    manager.evict_blocks([*table(manager, request)[1:], 0])
    assert manager.find_cached_prefix(make_request("b", range(9))).num_tokens == 4
    manager.free(request)
    manager.evict_blocks([1])
    assert free_ids(manager)[0] == 1
    assert manager.find_cached_prefix(make_request("b", range(9))).num_tokens == 0


def test_step_that_needs_nothing_returns_one_shared_empty_allocation(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager, request = make_manager(), make_request("a", range(4))
    compute(manager, request)
    assert decode(manager, request) == (2,)
    request.all_token_ids.append(7)
    assert manager.allocate(request, 1) is manager.allocate(request, 1)


def test_whole_prompt_reservation_refuses_a_first_chunk_whose_rest_would_not_fit(make_manager: Make, make_request: Make) -> None:
    manager, request = make_manager(num_usable_blocks=4), make_request("a", range(17))
    assert manager.allocate(request, 4, reserve_whole_prompt=True) is None
    assert manager.allocate(request, 4) is not None
    fitting = make_request("b", range(12))
    assert manager.allocate(fitting, 4, reserve_whole_prompt=True) is not None


def test_whole_prompt_reservation_of_a_window_asks_for_its_peak_only(make_manager: Make, make_group: Make, make_request: Make) -> None:
    group = make_group(kind="sliding_window", sliding_window=5)
    manager = make_manager(group, num_usable_blocks=4, max_num_batched_tokens=8)
    assert manager.max_request_tokens() == 4096
    assert manager.allocate(make_request("a", range(400)), 8, reserve_whole_prompt=True) is not None


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        ({}, {}, 24),
        ({}, {"max_model_len": 10}, 10),
        ({"kind": "sliding_window", "sliding_window": 5}, {}, 24),
        ({"kind": "sliding_window", "sliding_window": 5}, {"max_num_batched_tokens": 16}, 4096),
        ({"kind": "sliding_window", "sliding_window": 5}, {"max_num_batched_tokens": 17}, 24),
    ],
)
def test_longest_request_is_what_the_pool_can_hold(
    make_manager: Make, make_group: Make, kind: dict[str, Any], fields: dict[str, Any], expected: int
) -> None:
    assert make_manager(make_group(**kind), num_usable_blocks=6, **fields).max_request_tokens() == expected


def test_longest_request_counts_every_group(make_manager: Make, make_group: Make) -> None:
    assert make_manager(make_group(0, block_size=4), make_group(1, block_size=8), num_usable_blocks=6).max_request_tokens() == 16


def test_caching_off_finds_nothing_and_counts_nothing(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager = make_manager(enable_prefix_caching=False)
    request = make_request("a", range(9))
    assert [compute(manager, request), compute(manager, make_request("b", range(9)))] == [0, 0]
    assert manager.take_stats().requests == 0
    manager.free(request)
    assert manager.num_free_blocks == manager.num_usable_blocks - 3


def test_request_that_skips_reading_still_makes_its_blocks_findable(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager = make_manager()
    compute(manager, make_request("a", range(9)))
    assert compute(manager, make_request("b", range(9), skip_reading_prefix_cache=True)) == 0
    assert manager.take_stats().requests == 1
    assert compute(manager, make_request("c", range(9))) == 8


def test_stats_count_a_lookup_when_it_is_used_and_preempted_ones_apart(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager = make_manager()
    compute(manager, make_request("a", range(9)))
    second = make_request("b", range(9))
    for _ in range(3):
        manager.find_cached_prefix(second)
    compute(manager, second)
    compute(manager, make_request("c", range(10), num_preemptions=1))
    stats = manager.take_stats()
    assert (stats.requests, stats.query_tokens, stats.hit_tokens) == (2, 18, 8)
    assert (stats.preempted_requests, stats.preempted_query_tokens, stats.preempted_hit_tokens) == (1, 10, 8)
    assert manager.take_stats().requests == 0


def test_reset_forgets_everything_but_not_while_a_request_holds_blocks(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager, request = make_manager(enable_events=True), make_request("a", range(9))
    compute(manager, request)
    assert not manager.reset_prefix_cache()
    assert manager.find_cached_prefix(make_request("b", range(9))).num_tokens == 8
    manager.free(request)
    assert manager.reset_prefix_cache()
    assert manager.find_cached_prefix(make_request("b", range(9))).num_tokens == 0
    assert manager.take_events()[-1] == AllBlocksCleared()
    assert manager.take_stats().was_reset
    assert compute(manager, make_request("c", range(9))) == 0


def test_events_tell_what_became_findable_and_what_no_longer_is_in_order(make_manager: Make, make_request: Make) -> None:
    manager = make_manager(num_usable_blocks=3, enable_events=True)
    salt = ExtraKey(source="cache_salt", value="s", num_tokens=1)
    request = make_request("a", range(9), extra_keys=[salt])
    manager.allocate(request, 4)
    request.num_computed_tokens = 4
    manager.allocate(request, 5)
    request.num_computed_tokens = 9
    first, second = manager.take_events()
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert (first.parent_hash, first.token_ids, first.block_ids, first.extra_keys) == (None, (0, 1, 2, 3), (1,), ((salt,),))
    assert (second.parent_hash, second.token_ids, second.block_ids) == (first.block_hashes[0], (4, 5, 6, 7), (2,))
    manager.free(request)
    manager.allocate(make_request("b", range(50, 61)), 8)
    removed, stored = manager.take_events()
    assert removed == BlockRemoved(block_hashes=second.block_hashes, group=0)
    assert isinstance(stored, BlockStored)
    assert len(stored.block_hashes) == 2
    assert manager.take_events() == []


def test_events_are_silent_about_duplicates_until_the_last_one_goes(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager = make_manager(num_usable_blocks=2, enable_events=True)
    first, second = make_request("a", range(4)), make_request("b", range(4))
    compute(manager, first)
    compute(manager, second)
    assert len(manager.take_events()) == 1
    manager.evict_blocks([1])
    assert manager.take_events() == []
    manager.evict_blocks([2])
    assert [type(event) for event in manager.take_events()] == [BlockRemoved]


def test_nothing_is_recorded_when_nobody_listens(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager = make_manager()
    compute(manager, make_request("a", range(9)))
    assert manager.take_events() == []


def test_common_prefix_counts_blocks_shared_by_every_holder(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager = make_manager()
    assert manager.num_common_prefix_blocks(["a"]) == (0,)
    compute(manager, make_request("a", range(12)))
    assert manager.num_common_prefix_blocks(["a"]) == (3,)
    compute(manager, make_request("b", [*range(8), 50]))
    assert manager.num_common_prefix_blocks(["unknown", "b", "a"]) == (2,)
    compute(manager, make_request("c", [60]))
    assert manager.num_common_prefix_blocks(["a", "b"]) == (0,)


def test_common_prefix_of_a_window_group_is_zero(make_manager: Make, make_group: Make, make_request: Make, compute: Compute) -> None:
    manager = make_manager(make_group(0), make_group(1, kind="sliding_window", sliding_window=64))
    compute(manager, make_request("a", range(12)))
    compute(manager, make_request("b", range(12)))
    assert manager.num_common_prefix_blocks(["a"]) == (2, 0)


def test_free_of_an_unknown_or_freed_request_is_ignored(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager, request = make_manager(), make_request("a", range(9))
    manager.free(request)
    compute(manager, request)
    manager.free(request)
    manager.free(request)
    assert manager.num_free_blocks == manager.num_usable_blocks
    assert manager.block_ids("a") == ((),)


def test_an_id_that_comes_again_with_other_tokens_is_another_request(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager = make_manager()
    compute(manager, make_request("a", range(9)))
    assert manager.find_cached_prefix(make_request("x", range(9))).num_tokens == 8
    assert manager.find_cached_prefix(make_request("x", range(50, 59))).num_tokens == 0


def test_chains_of_requests_that_only_wait_are_bounded(make_request: Make) -> None:
    hasher = BlockHasher(SHA256, b"", 4)
    chains = WaitingChains(lambda request: HashChain(hasher, request))
    for number in range(MAX_WAITING_CHAINS + 5):
        chains.get(make_request(f"r{number}", [1]))
    assert len(chains) == MAX_WAITING_CHAINS


@pytest.mark.parametrize("num_new_tokens", [0, -1])
def test_refuses_to_allocate_for_no_token(make_manager: Make, make_request: Make, compute: Compute, num_new_tokens: int) -> None:
    manager, request = make_manager(), make_request("a", range(5))
    with pytest.raises(ValueError, match="1 token or more"):
        manager.allocate(request, num_new_tokens)
    compute(manager, request)
    with pytest.raises(ValueError, match="1 token or more"):
        manager.allocate(request, num_new_tokens)


def test_refuses_a_prefix_that_was_evicted_since_the_lookup(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager = make_manager(num_usable_blocks=3)
    first, late = make_request("a", range(9)), make_request("b", range(9))
    compute(manager, first)
    manager.free(first)
    prefix = manager.find_cached_prefix(late)
    other = make_request("c", range(50, 62))
    compute(manager, other)
    manager.free(other)
    with pytest.raises(ValueError, match="stale"):
        manager.allocate(late, 1, cached_prefix=prefix)


def test_refuses_a_prefix_for_a_request_that_holds_blocks(make_manager: Make, make_request: Make, compute: Compute) -> None:
    manager, request = make_manager(), make_request("a", range(9))
    compute(manager, request)
    with pytest.raises(ValueError, match="holds blocks"):
        manager.allocate(request, 1, cached_prefix=CachedPrefix(num_tokens=4, block_ids=((1,),)))


def test_refuses_a_setup_without_groups_blocks_or_order(make_manager: Make, make_group: Make) -> None:
    with pytest.raises(ValueError, match="2 or more"):
        make_manager(num_usable_blocks=0)
    with pytest.raises(ValueError, match="block sizes of 1 or more"):
        make_manager(make_group(block_size=0))
    with pytest.raises(ValueError, match=r"numbered 0, 1"):
        make_manager(make_group(index=1))
