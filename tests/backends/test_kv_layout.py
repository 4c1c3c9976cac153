"""Standard KV layouts: memory order, writes, agreement."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotwise.engine.kv_layout import allocate, negotiate_layout, standard_layout, write_standard_kv
from slotwise.errors import ResolutionError
from slotwise.interfaces.attention import AttentionLayer, KVLayoutRequest, KVWrite

LAYER = AttentionLayer(name="layer", index=0, num_heads=3, num_kv_heads=3, head_dim=2, scale=1.0)


def make_cache(name="nhd", dtype="float32"):
    request = KVLayoutRequest(name=name, num_blocks=5, block_size=4, num_kv_heads=3, head_dim=2, dtype=dtype)
    return allocate(standard_layout(request), "cpu")


@pytest.mark.parametrize(("name", "memory_order"), [("nhd", (0, 1, 2, 3, 4)), ("hnd", (0, 1, 3, 2, 4))])
def test_allocates_zeros_in_the_named_memory_order(name, memory_order):
    cache = make_cache(name)
    assert cache.shape == (5, 2, 4, 3, 2)
    assert cache.permute(memory_order).is_contiguous()
    assert cache.count_nonzero() == 0


def test_refuses_a_private_layout_by_name():
    with pytest.raises(ResolutionError, match="packed"):
        make_cache("packed")


@pytest.mark.parametrize("name", ["nhd", "hnd"])
def test_writes_each_token_into_its_slot_and_padding_nowhere(name):
    cache = make_cache(name).fill_(math.nan)
    key, value = torch.randn(4, 3, 2), torch.randn(4, 3, 2)
    write_standard_kv(KVWrite(layer=LAYER, key=key, value=value, kv_cache=cache, slot_mapping=torch.tensor([7, -1, 16, 5])))
    for token, (block, offset) in {0: (1, 3), 2: (4, 0), 3: (1, 1)}.items():
        assert torch.equal(cache[block, 0, offset], key[token])
        assert torch.equal(cache[block, 1, offset], value[token])
    assert torch.isfinite(cache).sum() == 3 * 2 * 3 * 2


def test_all_padding_writes_nothing():
    cache = make_cache()
    write_standard_kv(
        KVWrite(layer=LAYER, key=torch.ones(2, 3, 2), value=torch.ones(2, 3, 2), kv_cache=cache, slot_mapping=torch.tensor([-1, -1]))
    )
    assert cache.count_nonzero() == 0


def test_stores_scaled_values_in_the_caches_dtype():
    cache = make_cache(dtype="bfloat16")
    ones = torch.ones(1, 3, 2)
    write_standard_kv(KVWrite(layer=LAYER, key=ones, value=ones, kv_cache=cache, slot_mapping=torch.tensor([0]), k_scale=2.0, v_scale=4.0))
    assert torch.equal(cache[0, 0, 0], torch.full((3, 2), 0.5, dtype=torch.bfloat16))
    assert torch.equal(cache[0, 1, 0], torch.full((3, 2), 0.25, dtype=torch.bfloat16))


@given(st.lists(st.integers(0, 19), unique=True, min_size=1), st.sampled_from(["nhd", "hnd"]))
def test_any_set_of_slots_reads_back_what_was_written(slots, name):
    cache = make_cache(name)
    key = torch.arange(len(slots) * 6, dtype=torch.float32).view(-1, 3, 2) + 1
    write_standard_kv(KVWrite(layer=LAYER, key=key, value=-key, kv_cache=cache, slot_mapping=torch.tensor(slots)))
    assert torch.equal(cache[:, 0].reshape(20, 3, 2)[slots], key)
    assert cache.count_nonzero() == 2 * key.numel()


@pytest.mark.parametrize(
    ("accepted", "agreed"),
    [
        ([], None),
        ([("nhd", "hnd")], "nhd"),
        ([("nhd", "hnd"), ("hnd",)], "hnd"),
        ([("hnd", "nhd"), ("nhd", "hnd")], "hnd"),
        ([("nhd",), ("hnd",)], None),
        ([("own", "nhd"), ("nhd",), ("nhd", "hnd")], "nhd"),
    ],
)
def test_backends_agree_on_the_first_layout_all_accept(accepted, agreed):
    assert negotiate_layout(accepted) == agreed
