"""Hash chains: equal hash if and only if equal tokens, keys and past."""

from __future__ import annotations

import hashlib
import sys

from hypothesis import given
from hypothesis import strategies as st

from slotwise.engine.request import Request
from slotwise.interfaces.kv_cache import ExtraKey
from slotwise.sampling_params import SamplingParams
from slotwise_plugins.kv_cache.hashing import SHA256, BlockContent, BlockHasher, HashChain, HashFunction, keys_within

CONSTANT = HashFunction(name="constant", digest=lambda data: b"x", is_proof=False)
GRANULARITY = 2


def make_chain(
    tokens: list[int], keys: list[ExtraKey] | tuple[()] = (), *, function: HashFunction = SHA256, seed: bytes = b"s"
) -> HashChain:
    request = Request(request_id="r", prompt_token_ids=tokens, sampling_params=SamplingParams(), extra_keys=keys)
    chain = HashChain(BlockHasher(function, seed, GRANULARITY), request)
    chain.extend(len(tokens))
    return chain


tokens_lists = st.lists(st.sampled_from([0, 1, 255, 256, 2**32]), min_size=0, max_size=7)
keys_lists = st.lists(
    st.builds(
        ExtraKey,
        source=st.sampled_from(["adapter", "adapterx", "cache_salt"]),
        value=st.sampled_from(["", "x", "xa", "a", "adapter"]),
        first_token=st.integers(0, 4),
        num_tokens=st.sampled_from([None, 0, 1, 2, 4]),
    ),
    max_size=2,
)


def meaning(tokens: list[int], keys: list[ExtraKey]) -> list[tuple[object, ...]]:
    """Per whole block everything its content depends on, position by position."""
    blocks: list[tuple[object, ...]] = []
    for start in range(0, len(tokens) - len(tokens) % GRANULARITY, GRANULARITY):
        end = start + GRANULARITY
        covering = []
        for key in keys:
            last = end if key.num_tokens is None else min(key.first_token + key.num_tokens, end)
            if key.first_token < end and last > max(start, key.first_token):
                covering.append((key.source, key.value, key.first_token, last))
        blocks.append((tuple(tokens[start:end]), tuple(sorted(covering))))
    return blocks


@given(tokens_lists, keys_lists, tokens_lists, keys_lists)
def test_blocks_share_a_hash_exactly_when_they_and_their_past_mean_the_same(
    tokens_a: list[int], keys_a: list[ExtraKey], tokens_b: list[int], keys_b: list[ExtraKey]
) -> None:
    hashes_a, hashes_b = make_chain(tokens_a, keys_a).hashes, make_chain(tokens_b, keys_b).hashes
    meaning_a, meaning_b = meaning(tokens_a, keys_a), meaning(tokens_b, keys_b)
    for i, hash_a in enumerate(hashes_a):
        for j, hash_b in enumerate(hashes_b):
            assert (hash_a == hash_b) == (meaning_a[: i + 1] == meaning_b[: j + 1])


@given(tokens_lists, keys_lists)
def test_extending_piecewise_equals_hashing_at_once(tokens: list[int], keys: list[ExtraKey]) -> None:
    request = Request(request_id="r", prompt_token_ids=tokens, sampling_params=SamplingParams(), extra_keys=keys)
    chain = HashChain(BlockHasher(SHA256, b"s", GRANULARITY), request)
    for num_tokens in range(len(tokens) + 1):
        chain.extend(num_tokens)
    assert chain.hashes == make_chain(tokens, keys).hashes


def test_only_whole_blocks_are_hashed() -> None:
    assert [len(make_chain([1] * n).hashes) for n in range(5)] == [0, 0, 1, 1, 2]


def test_each_seed_starts_other_chains() -> None:
    assert make_chain([1, 2], seed=b"a").hashes != make_chain([1, 2], seed=b"b").hashes


def test_default_digest_is_sha256_of_the_whole_encoding() -> None:
    chain = make_chain([1, 2])
    encoding = BlockHasher(SHA256, b"s", GRANULARITY).encode(hashlib.sha256(b"slotwise kv chain root\0s").digest(), chain.request, 0)
    assert chain.hashes == [hashlib.sha256(encoding).digest()]


def test_cache_salt_of_the_first_token_spreads_over_the_chain() -> None:
    salt = ExtraKey(source="cache_salt", value="tenant", num_tokens=1)
    assert set(make_chain([1, 2, 3, 4], [salt]).hashes).isdisjoint(make_chain([1, 2, 3, 4]).hashes)
    assert keys_within([salt], 2, 4) == ()


def test_same_image_at_another_offset_is_other_content() -> None:
    def image(first: int) -> list[ExtraKey]:
        return [ExtraKey(source="multimodal", value="digest", first_token=first, num_tokens=2)]

    assert make_chain([9, 9, 9, 9], image(0)).hashes[1] != make_chain([9, 9, 9, 9], image(1)).hashes[1]


def test_text_that_is_not_valid_unicode_is_hashed_too() -> None:
    assert make_chain([1, 2], [ExtraKey(source="cache_salt", value="\ud800")]).hashes


@given(tokens_lists, tokens_lists)
def test_contents_tell_chains_apart_where_the_hash_does_not(tokens_a: list[int], tokens_b: list[int]) -> None:
    a, b = make_chain(tokens_a, function=CONSTANT), make_chain(tokens_b, function=CONSTANT)
    for i, content_a in enumerate(a.contents):
        for j, content_b in enumerate(b.contents):
            same = tokens_a[: (i + 1) * GRANULARITY] == tokens_b[: (j + 1) * GRANULARITY]
            assert content_a.equals(content_b) == same


def test_content_equals_nothing_that_was_not_kept() -> None:
    assert not BlockContent(None, b"a").equals(None)


def test_comparing_a_long_chain_link_by_link_joins_it_with_the_stored_one() -> None:
    length = sys.getrecursionlimit() * 2
    a, b = make_chain([1] * length, function=CONSTANT), make_chain([1] * length, function=CONSTANT)
    assert all(mine.equals(stored) for mine, stored in zip(a.contents, b.contents, strict=True))
    assert all(mine.parent is stored.parent for mine, stored in zip(a.contents, b.contents, strict=True))
