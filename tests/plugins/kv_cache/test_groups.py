"""Each group kind against the definition of its mask, position by position."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.engine.request import Request
from slotwise.interfaces.eviction import EvictionSetup
from slotwise.interfaces.kv_cache import KVGroup
from slotwise.sampling_params import SamplingParams
from slotwise_plugins.eviction.lru import LruEviction
from slotwise_plugins.kv_cache.block_group import BlockGroup
from slotwise_plugins.kv_cache.coordinator import HybridCoordinator, NoPrefixCoordinator, make_coordinator, make_groups
from slotwise_plugins.kv_cache.hashing import SHA256, BlockHasher, HashChain
from slotwise_plugins.kv_cache.pool import BlockPool

KINDS: list[dict[str, Any]] = [
    {"kind": "full"},
    *({"kind": "sliding_window", "sliding_window": window} for window in (1, 2, 5, 6, 9)),
    *({"kind": "chunked_local", "chunk_len": length} for length in (1, 3, 4, 6, 8)),
]
kinds = st.sampled_from(KINDS)
NUM_TOKENS = 40


def first_visible(kind: dict[str, Any], position: int) -> int:
    if kind["kind"] == "sliding_window":
        return max(0, position - kind["sliding_window"] + 1)
    return position // kind["chunk_len"] * kind["chunk_len"] if kind["kind"] == "chunked_local" else 0


def build(specs: list[tuple[dict[str, Any], int]]) -> tuple[tuple[BlockGroup, ...], BlockPool, HashChain]:
    """Groups of the given kinds and block sizes, and the chain of one request of distinct tokens."""
    groups = [KVGroup(index=i, layer_names=(), block_size=size, bytes_per_block=1, **kind) for i, (kind, size) in enumerate(specs)]
    granularity = math.gcd(*(size for _, size in specs))
    num_blocks = 2 + NUM_TOKENS * len(specs)
    pool = BlockPool(num_blocks, len(specs), LruEviction(EvictionSetup(num_blocks=num_blocks - 1)), record_events=False)
    request = Request(request_id="r", prompt_token_ids=range(NUM_TOKENS), sampling_params=SamplingParams())
    chain = HashChain(BlockHasher(SHA256, b"", granularity), request)
    chain.extend(NUM_TOKENS)
    return make_groups(groups, pool, granularity), pool, chain


def cache(group: BlockGroup, pool: BlockPool, chain: HashChain, indices: set[int]) -> dict[int, int]:
    """Register a block for each of those places; place -> block id."""
    ids = {}
    for index in indices:
        (block,) = pool.take(1)
        pool.register(block, group.index, chain.hashes[group.link(index)], None)
        ids[index] = block.block_id
    return ids


def is_usable(kind: dict[str, Any], size: int, cached: set[int], length: int) -> bool:
    """Definition: the last block and every block that holds a token seen from position `length` on are cached."""
    needed = {position // size for position in range(first_visible(kind, length), length)} | {length // size - 1}
    return needed <= cached


@given(kinds, st.integers(1, 5))
def test_skipped_tokens_are_those_before_what_the_next_token_sees(kind: dict[str, Any], size: int) -> None:
    (group,), _, _ = build([(kind, size)])
    for computed in range(NUM_TOKENS):
        assert group.num_skipped_tokens(computed) == first_visible(kind, computed)


@given(kinds, st.integers(1, 5))
def test_next_skip_is_the_first_count_that_frees_one_more_block(kind: dict[str, Any], size: int) -> None:
    (group,), _, _ = build([(kind, size)])
    for skipped in range(5):
        counts = [computed for computed in range(NUM_TOKENS) if first_visible(kind, computed) // size > skipped]
        assert group.next_skip(skipped) == counts[0] if counts else group.next_skip(skipped) >= NUM_TOKENS


@given(kinds, st.integers(1, 5), st.integers(1, 12))
def test_peak_covers_every_way_to_compute_a_sequence(kind: dict[str, Any], size: int, step: int) -> None:
    (group,), _, _ = build([(kind, size)])
    for computed in range(NUM_TOKENS):
        for end in range(computed + 1, min(computed + step, NUM_TOKENS) + 1):
            held = -(-end // size) - first_visible(kind, computed) // size
            assert held <= group.peak_blocks(NUM_TOKENS, step)
    assert group.peak_blocks(NUM_TOKENS, None) == -(-NUM_TOKENS // size)


@given(kinds, st.integers(1, 5), st.sets(st.integers(0, 7)), st.integers(0, NUM_TOKENS), st.integers(1, 2))
def test_hit_is_the_longest_usable_prefix(kind: dict[str, Any], size: int, cached: set[int], max_tokens: int, multiple: int) -> None:
    (group,), pool, chain = build([(kind, size)])
    ids = cache(group, pool, chain, cached)
    alignment = size * multiple
    lengths = range(alignment, max_tokens + 1, alignment)
    longest = max((length for length in lengths if is_usable(kind, size, cached, length)), default=0)
    hits = group.find_hits(chain, max_tokens, alignment)
    skipped = first_visible(kind, longest) // size
    assert [block.block_id for block in hits] == [0 if index < skipped else ids[index] for index in range(longest // size)]


@given(st.data())
def test_hybrid_hit_is_usable_by_every_group_and_maximal(data: st.DataObject) -> None:
    specs = data.draw(st.lists(st.tuples(kinds, st.sampled_from([1, 2, 3, 4])), min_size=2, max_size=3))
    groups, pool, chain = build(specs)
    cached = [data.draw(st.sets(st.integers(0, NUM_TOKENS // size - 1))) for _, size in specs]
    for group, places in zip(groups, cached, strict=True):
        cache(group, pool, chain, places)
    alignment = math.lcm(*(size for _, size in specs))
    max_tokens = data.draw(st.integers(0, NUM_TOKENS))
    usable = [
        length
        for length in range(alignment, max_tokens + 1, alignment)
        if all(
            is_usable(kind, size, places, length) and (kind["kind"] != "full" or set(range(length // size)) <= places)
            for (kind, size), places in zip(specs, cached, strict=True)
        )
    ]
    hits = HybridCoordinator(groups).find(chain, max_tokens)
    assert [len(hit) * group.block_size for group, hit in zip(groups, hits, strict=True)] == [max(usable, default=0)] * len(groups)


def test_window_hit_counts_a_shorter_run_at_the_very_start() -> None:
    (group,), pool, chain = build([({"kind": "sliding_window", "sliding_window": 9}, 2)])
    ids = cache(group, pool, chain, {0, 1})
    assert [block.block_id for block in group.find_hits(chain, 20, 2)] == [ids[0], ids[1]]


def test_chunk_hit_needs_only_the_blocks_from_the_start_of_the_chunk() -> None:
    (group,), pool, chain = build([({"kind": "chunked_local", "chunk_len": 8}, 2)])
    ids = cache(group, pool, chain, {4, 5})
    assert [block.block_id for block in group.find_hits(chain, 13, 2)] == [0, 0, 0, 0, ids[4], ids[5]]


def test_caching_off_finds_nothing() -> None:
    groups, pool, chain = build([({"kind": "full"}, 2)])
    cache(groups[0], pool, chain, {0})
    coordinator = make_coordinator(groups, enable_prefix_caching=False)
    assert isinstance(coordinator, NoPrefixCoordinator)
    assert coordinator.find(chain, 8) == [[]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "sliding_window"}, "window None"),
        ({"kind": "sliding_window", "sliding_window": 0}, "window 0"),
        ({"kind": "chunked_local"}, "chunk_len None"),
        ({"kind": "mamba"}, "'mamba'; `paged` and `no_prefix` manage full, sliding_window, chunked_local"),
    ],
)
def test_refuses_groups_it_cannot_manage(make_manager: Callable[..., Any], make_group: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_manager(make_group(**fields))
