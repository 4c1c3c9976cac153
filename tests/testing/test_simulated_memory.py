"""What the kit's memory calls equal, and what a copy moves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.interfaces.kv_cache import ExtraKey, KVGroup
from slotwise.testing.simulated_memory import ContentIds, SimulatedMemory, first_visible
from slotwise.testing.simulated_request import SimulatedRequest

ADAPTER = ExtraKey(source="adapter", value="x")
SALT = ExtraKey(source="cache_salt", value="x", num_tokens=1)
IMAGE = ExtraKey(source="multimodal", value="x", first_token=2, num_tokens=2)
GROUP = KVGroup(index=0, layer_names=(), block_size=4, bytes_per_block=1)


def contents(ids: ContentIds, name: str, tokens: Sequence[int], *keys: ExtraKey) -> list[int]:
    request = SimulatedRequest(name, tokens, extra_keys=keys)
    return [ids.at(request, position) for position in range(len(tokens))]


@given(st.lists(st.integers(0, 2), min_size=1), st.lists(st.integers(0, 2), min_size=1))
def test_content_is_equal_exactly_as_far_as_all_tokens_are(first, second):
    ids = ContentIds()
    a, b = contents(ids, "a", first), contents(ids, "b", second)
    for position in range(min(len(first), len(second))):
        assert (a[position] == b[position]) == (first[: position + 1] == second[: position + 1])


def test_keys_count_from_their_first_position_on_and_by_source():
    ids = ContentIds()
    plain, image = contents(ids, "plain", [5] * 5), contents(ids, "image", [5] * 5, IMAGE)
    assert [a == b for a, b in zip(plain, image, strict=True)] == [True, True, False, False, False]
    assert not {*contents(ids, "adapter", [5] * 5, ADAPTER)} & {*contents(ids, "salt", [5] * 5, SALT), *plain}


def test_all_sources_of_copies_are_read_before_a_target_is_written():
    memory = SimulatedMemory()
    for block, content in ((1, 10), (2, 20)):
        memory.write(GROUP, block, 0, content)
        memory.write(GROUP, block, 1, content + 1)
    memory.copy([(1, 2, 2), (2, 3, 1)])
    assert [memory.read(GROUP, block, position) for block in (2, 3) for position in (0, 1)] == [10, 11, 20, None]


def test_one_group_does_not_read_what_another_wrote():
    memory, other = SimulatedMemory(), KVGroup(index=1, layer_names=(), block_size=4, bytes_per_block=1)
    memory.write(GROUP, 1, 6, 9)
    assert (memory.read(GROUP, 1, 2), memory.read(other, 1, 2)) == (9, None)


@pytest.mark.parametrize(
    ("fields", "position", "first"),
    [
        ({}, 9, 0),
        ({"kind": "sliding_window", "sliding_window": 4}, 9, 6),
        ({"kind": "sliding_window", "sliding_window": 4}, 2, 0),
        ({"kind": "chunked_local", "chunk_len": 4}, 9, 8),
    ],
)
def test_a_position_sees_what_its_kind_of_layer_sees(fields, position, first):
    assert first_visible(KVGroup(index=0, layer_names=(), block_size=2, bytes_per_block=1, **fields), position) == first
