"""The `radix` manager: hits to the token, copies and what may be copied, separate trees, events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from slotwise.engine.request import Request
from slotwise.errors import ConfigError
from slotwise.interfaces.kv_cache import AllBlocksCleared, Allocation, BlockCopy, BlockRemoved, BlockStored, ExtraKey, KVEvent
from slotwise_plugins.kv_cache.radix_manager import RadixKVCacheManager
from slotwise_plugins.kv_cache.radix_options import RadixOptions

Make = Callable[..., Any]
Compute = Callable[[RadixKVCacheManager, Request], int]


def admit(manager: RadixKVCacheManager, request: Request, num_tokens: int | None = None) -> tuple[int, Allocation]:
    """Start a request as the scheduler does, the step not yet run: cached tokens, and what it gained."""
    prefix = manager.find_cached_prefix(request)
    allocation = manager.allocate(request, num_tokens or request.num_tokens - prefix.num_tokens, cached_prefix=prefix)
    assert allocation is not None
    request.num_computed_tokens = prefix.num_tokens
    return prefix.num_tokens, allocation


def run_alone(manager: RadixKVCacheManager, request: Request, output: Sequence[int] = ()) -> int:
    """Compute a request to its end and let it go; how many tokens were cached. The last output token is never computed."""
    num_cached, _ = admit(manager, request)
    request.num_computed_tokens = request.num_tokens
    for token in output:
        request.all_token_ids.append(token)
        assert token == output[-1] or manager.allocate(request, 1) is not None
        request.num_computed_tokens = request.num_tokens - (token == output[-1])
    manager.free(request)
    return num_cached


@pytest.mark.parametrize(("block_size", "num_tokens", "hit"), [(16, 32, 31), (16, 31, 30), (16, 17, 16), (4, 8, 7), (1, 8, 7), (16, 1, 0)])
def test_all_tokens_but_the_last_are_cached_whatever_the_block_size(
    make_radix: Make, make_group: Make, make_request: Make, compute: Compute, block_size: int, num_tokens: int, hit: int
) -> None:
    manager = make_radix(make_group(block_size=block_size))
    first = make_request("a", range(num_tokens))
    assert compute(manager, first) == 0
    first.all_token_ids.append(99)
    manager.free(first)
    assert compute(manager, make_request("b", range(num_tokens))) == hit


def test_a_hit_inside_a_block_shares_whole_blocks_and_copies_the_rest_into_the_first_new_one(make_radix: Make, make_request: Make) -> None:
    manager = make_radix()
    run_alone(manager, make_request("a", range(12)))
    request = make_request("b", [0, 1, 2, 3, 4, 5, 6, 99, 100])
    num_cached, allocation = admit(manager, request)
    assert num_cached == 7
    assert allocation.new_block_ids == ((1, 4, 5),)
    assert allocation.block_copies == (BlockCopy(group=0, source_block=2, target_block=4, num_tokens=3),)
    assert manager.take_stats().hit_tokens == 7


def test_the_sibling_that_agrees_longest_is_copied(make_radix: Make, make_request: Make) -> None:
    manager = make_radix()
    for number, prompt in enumerate([[1, 2, 9, 9], [1, 2, 3, 9], [1, 2, 4, 4], [7, 7, 7, 7]]):
        run_alone(manager, make_request(f"r{number}", [*prompt, 0]))
    (hit,) = manager.find_cached_prefix(make_request("x", [1, 2, 3, 4, 5])).partial_hits
    assert hit.num_tokens == 3
    assert manager.pool.blocks[hit.source_block].node.label == (1, 2, 3, 9)


def test_the_half_full_last_block_of_an_ended_request_is_found(make_radix: Make, make_request: Make) -> None:
    manager = make_radix()
    run_alone(manager, make_request("a", range(5)), output=[50, 51])
    assert manager.find_cached_prefix(make_request("b", [0, 1, 2, 3, 4, 50, 51, 52])).num_tokens == 6


def test_a_longer_block_replaces_the_half_full_one_it_continues(make_radix: Make, make_request: Make) -> None:
    manager = make_radix()
    run_alone(manager, make_request("a", [1, 2, 3]))
    assert manager.pool.num_idle_blocks == 1
    run_alone(manager, make_request("b", [1, 2, 3, 4, 5, 6]))
    assert sorted(len(block.node.label) for block in manager.pool.blocks if block.node) == [1, 4]
    run_alone(manager, make_request("c", [1, 2, 3]))
    assert sorted(block.node.label for block in manager.pool.blocks if block.node) == [(1, 2, 3, 4), (5,)]


def test_nothing_is_copied_from_a_block_that_this_step_computes(make_radix: Make, make_request: Make) -> None:
    """A whole block may be shared in the step that computes it, since every layer writes before it reads; a copy would come too early."""
    manager = make_radix()
    first = make_request("a", range(9))
    admit(manager, first)
    assert admit(manager, make_request("b", [0, 1, 2, 3, 4, 5, 99]))[0] == 4
    first.num_computed_tokens = 9
    assert admit(manager, make_request("c", [0, 1, 2, 3, 4, 5, 98]))[0] == 6


def test_blocks_of_a_preempted_request_may_be_copied(make_radix: Make, make_request: Make) -> None:
    manager = make_radix()
    request = make_request("a", range(9))
    admit(manager, request)
    request.num_computed_tokens = 9
    manager.free(request)
    request.num_computed_tokens = 0
    assert manager.find_cached_prefix(make_request("b", [0, 1, 2, 3, 4, 5, 99])).num_tokens == 6


def test_a_source_that_is_itself_taken_needs_no_copy(make_radix: Make, make_request: Make) -> None:
    manager = make_radix(num_usable_blocks=2)
    run_alone(manager, make_request("a", [1, 2, 3, 4, 5]))
    blocker = make_request("blocker", [8])
    admit(manager, blocker)
    num_cached, allocation = admit(manager, make_request("b", [1, 2, 9]))
    assert (num_cached, allocation.block_copies) == (2, ())


def test_a_source_taken_by_a_later_request_of_the_step_is_still_copied(make_radix: Make, make_request: Make) -> None:
    manager = make_radix(num_usable_blocks=3)
    run_alone(manager, make_request("a", [1, 2, 3, 4]))
    (source,) = [block.block_id for block in manager.pool.blocks if block.node]
    _, allocation = admit(manager, make_request("b", [1, 2, 9]))
    assert allocation.block_copies[0].source_block == source
    _, later = admit(manager, make_request("c", range(20, 28)))
    assert source in later.new_block_ids[0]


def test_what_a_failed_step_wrote_is_neither_found_nor_kept_half_full(make_radix: Make, make_request: Make) -> None:
    manager = make_radix()
    request = make_request("a", range(7))
    admit(manager, request)
    request.num_computed_tokens = 7
    manager.evict_blocks(manager.block_ids("a")[0])
    manager.free(request)
    assert manager.find_cached_prefix(make_request("b", range(7))).num_tokens == 0
    assert manager.pool.num_idle_blocks == 0


def test_a_request_goes_on_after_the_blocks_before_were_made_unfindable(make_radix: Make, make_request: Make) -> None:
    manager = make_radix()
    request = make_request("a", range(6))
    admit(manager, request)
    request.num_computed_tokens = 6
    manager.evict_blocks(manager.block_ids("a")[0])
    request.all_token_ids += range(6, 13)
    assert manager.allocate(request, 7) is not None
    request.num_computed_tokens = 13
    manager.free(request)
    assert manager.find_cached_prefix(make_request("b", range(13))).num_tokens == 0, "its first block cannot be found"
    run_alone(manager, make_request("c", range(5)))
    assert manager.find_cached_prefix(make_request("d", range(13))).num_tokens == 12, "what comes after is found again"


def test_content_is_kept_idle_once_and_the_last_user_keeps_it_young(make_radix: Make, make_request: Make) -> None:
    manager = make_radix()
    for number in range(5):
        run_alone(manager, make_request(f"r{number}", range(8)))
    assert manager.pool.num_idle_blocks == 2


SALT = ExtraKey(source="cache_salt", value="s", num_tokens=1)
ADAPTER = ExtraKey(source="adapter", value="a")
IMAGE = ExtraKey(source="multimodal", value="i", first_token=5, num_tokens=2)


@pytest.mark.parametrize(
    ("keys", "other_keys", "hit"),
    [
        ([SALT], [SALT], 11),
        ([SALT], [], 0),
        ([ADAPTER], [SALT], 0),
        ([ADAPTER], [ExtraKey(source="adapter", value="b")], 0),
        ([SALT, ADAPTER], [ADAPTER, SALT], 11),
        ([IMAGE], [IMAGE], 11),
        ([IMAGE], [], 5),
        ([IMAGE], [ExtraKey(source="multimodal", value="j", first_token=5, num_tokens=2)], 5),
        ([IMAGE], [ExtraKey(source="multimodal", value="i", first_token=6, num_tokens=2)], 5),
        ([IMAGE], [ExtraKey(source="multimodal", value="i", first_token=5, num_tokens=1)], 6),
        ([ExtraKey(source="multimodal", value="i", num_tokens=3)], [ExtraKey(source="multimodal", value="i", num_tokens=6)], 0),
    ],
)
def test_keys_separate_exactly_what_depends_on_them(
    make_radix: Make, make_request: Make, keys: list[ExtraKey], other_keys: list[ExtraKey], hit: int
) -> None:
    manager = make_radix()
    run_alone(manager, make_request("a", range(13), extra_keys=keys))
    assert manager.find_cached_prefix(make_request("b", range(12), extra_keys=other_keys)).num_tokens == hit


def test_a_tree_that_became_empty_leaves_nothing_behind(make_radix: Make, make_request: Make) -> None:
    manager = make_radix(num_usable_blocks=3)
    for number in range(50):
        key = ExtraKey(source="cache_salt", value=str(number), num_tokens=1)
        run_alone(manager, make_request(f"r{number}", range(9), extra_keys=[key]))
    assert len(manager._tree._roots) == 1


def test_short_matches_are_not_copied_below_the_configured_length(make_radix: Make, make_request: Make) -> None:
    manager = make_radix(options=RadixOptions(min_copied_tokens=3))
    run_alone(manager, make_request("a", range(9)))
    assert manager.find_cached_prefix(make_request("b", [0, 1, 2, 3, 4, 5, 99])).num_tokens == 4
    assert manager.find_cached_prefix(make_request("c", [0, 1, 2, 3, 4, 5, 6, 99])).num_tokens == 7


def test_refuses_a_prefix_that_was_evicted_since_the_lookup(make_radix: Make, make_request: Make) -> None:
    manager = make_radix()
    run_alone(manager, make_request("a", range(9)))
    request = make_request("b", [0, 1, 2, 3, 4, 5, 99])
    prefix = manager.find_cached_prefix(request)
    manager.evict_blocks([prefix.partial_hits[0].source_block])
    with pytest.raises(ValueError, match="stale at block"):
        manager.allocate(request, 1, cached_prefix=prefix)
    prefix = manager.find_cached_prefix(request)
    manager.evict_blocks(prefix.block_ids[0])
    with pytest.raises(ValueError, match="stale at block"):
        manager.allocate(request, 3, cached_prefix=prefix)


def test_an_older_answer_that_still_holds_may_be_used(make_radix: Make, make_request: Make) -> None:
    manager = make_radix()
    run_alone(manager, make_request("a", [0, 1, 2, 3, 4, 99, 99, 99]))
    request = make_request("b", range(9))
    prefix = manager.find_cached_prefix(request)
    run_alone(manager, make_request("c", range(7)))
    assert manager.find_cached_prefix(request).num_tokens > prefix.num_tokens
    assert manager.allocate(request, 9 - prefix.num_tokens, cached_prefix=prefix) is not None


@pytest.mark.parametrize(
    "kinds", [[{"kind": "sliding_window", "sliding_window": 4}], [{}, {}], [{}, {"kind": "chunked_local", "chunk_len": 4}]]
)
def test_refuses_models_of_other_groups_and_names_the_manager_for_them(make_radix: Make, make_group: Make, kinds: list[Any]) -> None:
    with pytest.raises(ConfigError, match='Use "paged"') as raised:
        make_radix(*(make_group(index, **kind) for index, kind in enumerate(kinds)))
    assert raised.value.key == "kv_cache.use"


def test_caching_off_finds_and_keeps_nothing(make_radix: Make, make_request: Make) -> None:
    manager = make_radix(enable_prefix_caching=False)
    run_alone(manager, make_request("a", range(9)))
    assert manager.find_cached_prefix(make_request("b", range(9))).num_tokens == 0
    assert manager.pool.num_idle_blocks == 0


class Listener:
    """Rebuilds sequences from events: hash -> all tokens up to the block's end."""

    def __init__(self) -> None:
        self.sequences: dict[bytes, tuple[int, ...]] = {}

    def tell(self, events: Iterable[KVEvent]) -> None:
        for event in events:
            if isinstance(event, BlockStored):
                before = () if event.parent_hash is None else self.sequences[event.parent_hash]
                for number, block_hash in enumerate(event.block_hashes):
                    before += event.token_ids[number * event.block_size : (number + 1) * event.block_size]
                    self.sequences[block_hash] = before
            elif isinstance(event, BlockRemoved):
                for block_hash in event.block_hashes:
                    del self.sequences[block_hash]
            else:
                assert isinstance(event, AllBlocksCleared)
                self.sequences.clear()


def test_a_listener_can_rebuild_the_content_half_full_blocks_included(make_radix: Make, make_request: Make) -> None:
    manager, listener = make_radix(enable_events=True, num_usable_blocks=6), Listener()
    run_alone(manager, make_request("a", range(11)))
    run_alone(manager, make_request("b", [0, 1, 2, 3, 4, 50, 51]))
    listener.tell(manager.take_events())
    assert sorted(listener.sequences.values()) == [
        (0, 1, 2, 3),
        (0, 1, 2, 3, 4, 5, 6, 7),
        (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
        (0, 1, 2, 3, 4, 50),
    ]
    run_alone(manager, make_request("c", range(100, 117)))
    listener.tell(manager.take_events())
    assert (0, 1, 2, 3) in listener.sequences.values(), "tails go before the head they share"
    assert len(listener.sequences) == 5
    assert manager.reset_prefix_cache()
    listener.tell(manager.take_events())
    assert not listener.sequences


def test_nothing_is_recorded_when_nobody_listens(make_radix: Make, make_request: Make) -> None:
    manager = make_radix()
    run_alone(manager, make_request("a", range(11)))
    assert manager.take_events() == []


def test_of_a_prompt_that_was_given_up_half_way_only_what_was_computed_is_found(make_radix: Make, make_request: Make) -> None:
    manager = make_radix()
    request = make_request("a", range(12))
    admit(manager, request, num_tokens=6)
    request.num_computed_tokens = 6
    assert manager.allocate(request, 5) is not None
    manager.free(request)
    assert manager.find_cached_prefix(make_request("b", range(12))).num_tokens == 6
