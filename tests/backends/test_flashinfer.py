"""FlashInfer's page tables by hand, its views of a cache, and that the stand-in refuses what the library would."""

from __future__ import annotations

import pytest
import torch

from slotwise.engine.kv_layout import allocate, standard_layout
from slotwise.interfaces.attention import KVLayoutRequest
from slotwise_backends.flashinfer_attention.cache_views import slot_view, slots_per_block
from slotwise_backends.flashinfer_attention.pages import paged_rows, shared_prefix, token_rows, windowed_rows

from . import flashinfer_standin
from .library_checks import WrongArgumentError

TABLE = torch.tensor([[5, 7, 0], [2, 0, 0], [9, 4, 8]], dtype=torch.int32)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def test_pages_of_rows_lie_one_after_the_other():
    rows = paged_rows(ints(1, 1, 3), ints(20, 9, 48), TABLE, page_size=16)
    assert rows.page_indptr.tolist() == [0, 2, 3, 6]
    assert rows.page_indices.tolist() == [5, 7, 2, 9, 4, 8]
    assert rows.last_page_len.tolist() == [4, 9, 16]
    assert rows.query_indptr.tolist() == [0, 1, 2, 5]
    assert rows.tokens is None
    assert not rows.is_decode


def test_rows_without_queries_or_keys_are_left_out():
    rows = paged_rows(ints(1, 0, 2), ints(20, 9, 0), TABLE, page_size=16)
    assert rows.page_indices.tolist() == [5, 7]
    assert rows.tokens.tolist() == [0]
    assert rows.is_decode


def test_chosen_rows_name_their_tokens():
    rows = paged_rows(ints(2, 1, 2), ints(20, 9, 40), TABLE, page_size=16, chosen=torch.tensor([True, False, True]))
    assert rows.page_indices.tolist() == [5, 7, 9, 4, 8]
    assert rows.tokens.tolist() == [0, 1, 3, 4]


def test_a_suffix_begins_after_the_shared_pages():
    rows = paged_rows(ints(1, 1, 1), ints(20, 17, 48), TABLE, page_size=16, first_page=1)
    assert rows.page_indices.tolist() == [7, 0, 4, 8]
    assert rows.last_page_len.tolist() == [4, 1, 16]
    prefix = shared_prefix(3, TABLE, num_pages=1, page_size=16)
    assert (prefix.page_indices.tolist(), prefix.last_page_len.tolist(), prefix.query_indptr.tolist()) == ([5], [16], [0, 3])


def test_keys_that_left_a_window_are_not_listed():
    rows = windowed_rows(ints(1, 3, 1), ints(20, 4, 34), TABLE, block_size=16, slots_per_block=32, window_left=3)
    assert rows.page_indptr.tolist() == [0, 4, 8, 12]
    in_block_7, in_block_2 = ([block * 32 + offset for offset in range(4)] for block in (7, 2))
    assert rows.page_indices.tolist() == [*in_block_7, *in_block_2, 4 * 32 + 14, 4 * 32 + 15, 8 * 32, 8 * 32 + 1]
    assert (rows.page_size, rows.is_by_key, rows.page_indices.dtype) == (1, True, torch.int32)
    assert rows.last_page_len.tolist() == [1, 1, 1]


def test_chosen_rows_of_a_window_name_their_tokens():
    rows = windowed_rows(
        ints(2, 1, 0), ints(20, 4, 34), TABLE, block_size=16, slots_per_block=32, window_left=0, chosen=torch.tensor([True, False, True])
    )
    assert (rows.page_indptr.tolist(), rows.tokens.tolist()) == ([0, 2], [0, 1])


def test_rows_without_a_cache_are_their_tokens():
    assert token_rows(ints(2, 0, 3), torch.device("cpu")).query_indptr.tolist() == [0, 2, 5]
    chosen = token_rows(ints(2, 1, 3), torch.device("cpu"), torch.tensor([True, False, True]))
    assert (chosen.query_indptr.tolist(), chosen.tokens.tolist()) == ([0, 2, 5], [0, 1, 3, 4, 5])


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("block_size", [1, 12])
def test_a_slot_view_finds_every_key_and_value(layout, block_size):
    request = KVLayoutRequest(name=layout, num_blocks=5, block_size=block_size, num_kv_heads=3, head_dim=8, dtype="float32")
    cache = allocate(standard_layout(request), "cpu")
    cache.copy_(torch.arange(cache.numel()).view(cache.shape))
    key, value = slot_view(cache, is_hnd=layout == "hnd")
    blocks, offsets = torch.meshgrid(torch.arange(5), torch.arange(block_size), indexing="ij")
    slots = blocks * slots_per_block(layout, block_size, 3) + offsets
    for view, half in ((key, 0), (value, 1)):
        assert torch.equal(view[slots].squeeze(2 if layout == "nhd" else 3), cache[:, half])
        assert view.shape[0] == slots.max() + 1


PLAN = {
    "indptr": ints(0, 2, 3),
    "indices": ints(5, 7, 2),
    "last_page_len": ints(4, 9),
    "num_qo_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 64,
    "page_size": 16,
    "logits_soft_cap": 0.0,
    "sm_scale": 0.125,
    "q_data_type": torch.bfloat16,
    "kv_data_type": torch.bfloat16,
}


def wrapper(**changes):
    facts = {"float_workspace_buffer": torch.zeros(2**24, dtype=torch.uint8)} | changes
    return flashinfer_standin.BatchDecodeWithPagedKVCacheWrapper(**facts)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"indptr": torch.tensor([0, 2, 3])}, "indptr must be of"),
        ({"indptr": ints(1, 2, 3)}, "begin with 0"),
        ({"indptr": ints(0, 3, 3)}, "must have a page"),
        ({"indices": ints(5, 7)}, "must end with 2"),
        ({"last_page_len": ints(0, 9)}, "1 .. 16"),
        ({"last_page_len": ints(17, 9)}, "1 .. 16"),
        ({"num_kv_heads": 3}, "divide"),
        ({"head_dim": 80}, "head_dim"),
        ({"q_data_type": "float16"}, "q_data_type"),
        ({"kv_data_type": None}, "kv_data_type"),
        ({"kv_data_type": torch.float16}, "kv_data_type"),
        ({"logits_soft_cap": None}, "logits_soft_cap"),
        ({"sm_scale": None}, "sm_scale"),
        ({"window_left": None}, "window_left"),
        ({"pos_encoding_mode": "ALIBI"}, "rotates"),
    ],
)
def test_a_wrong_plan_is_refused(changes, words):
    wrapper().plan(**PLAN)
    with pytest.raises(WrongArgumentError, match=words):
        wrapper().plan(**(PLAN | changes))


@pytest.mark.parametrize(
    ("query", "cache", "words"),
    [
        (torch.zeros(3, 4, 64, dtype=torch.bfloat16), None, "size 2"),
        (torch.zeros(2, 4, 64, dtype=torch.float16), None, "q must be of"),
        (torch.zeros(2, 64, 4, dtype=torch.bfloat16).transpose(1, 2), None, "contiguous"),
        (None, torch.zeros(10, 2, 2, 16, 64, dtype=torch.bfloat16), "paged_kv_cache"),
        (None, torch.zeros(10, 2, 16, 2, 64, dtype=torch.float16), "paged_kv_cache"),
        (None, torch.zeros(7, 2, 16, 2, 64, dtype=torch.bfloat16), "indices must be pages"),
        (None, tuple(torch.zeros(8 + i, 16, 2, 64, dtype=torch.bfloat16)[:: 1 + i] for i in (0, 1)), "same strides"),
    ],
)
def test_a_wrong_run_is_refused(query, cache, words):
    planned = wrapper()
    planned.plan(**PLAN)
    good = torch.zeros(2, 4, 64, dtype=torch.bfloat16), torch.zeros(10, 2, 16, 2, 64, dtype=torch.bfloat16)
    planned.run(*good)
    with pytest.raises(WrongArgumentError, match=words):
        planned.run(good[0] if query is None else query, good[1] if cache is None else cache)


def test_decode_kernels_without_tensor_cores_know_few_groups():
    with pytest.raises(WrongArgumentError, match="group_size: 5"):
        wrapper().plan(**(PLAN | {"num_qo_heads": 10}))
    wrapper(use_tensor_cores=True).plan(**(PLAN | {"num_qo_heads": 10}))


def test_a_batch_without_rows_is_refused():
    with pytest.raises(WrongArgumentError, match="must have rows"):
        wrapper().plan(**(PLAN | {"indptr": ints(0), "indices": ints(), "last_page_len": ints()}))


PREFILL = {name: value for name, value in PLAN.items() if name not in ("indptr", "indices", "last_page_len", "head_dim")} | {
    "qo_indptr": ints(0, 1, 3),
    "paged_kv_indptr": ints(0, 2, 3),
    "paged_kv_indices": ints(5, 7, 2),
    "paged_kv_last_page_len": ints(4, 9),
    "head_dim_qk": 64,
}
MASK = torch.ones(1 * 20 + 2 * 9, dtype=torch.bool)


def prefill(**changes):
    return flashinfer_standin.BatchPrefillWithPagedKVCacheWrapper(torch.zeros(2**24, dtype=torch.uint8), **changes)


def test_masks_want_their_size_their_device_and_their_kernels():
    prefill().plan(**PREFILL, custom_mask=MASK)
    with pytest.raises(WrongArgumentError, match="custom_mask must have size 38"):
        prefill().plan(**PREFILL, custom_mask=MASK[1:])
    with pytest.raises(WrongArgumentError, match="tables must lie"):
        prefill().plan(**PREFILL, custom_mask=MASK.to("meta"))
    planned = prefill()
    planned.plan(**PREFILL)
    with pytest.raises(WrongArgumentError, match="first plan"):
        planned.plan(**PREFILL, custom_mask=MASK)


def test_what_is_hidden_is_read_and_infinity_is_finite():
    planned = prefill()
    planned.plan(**PREFILL, custom_mask=torch.zeros_like(MASK))
    query, cache = torch.zeros(3, 4, 64, dtype=torch.bfloat16), torch.zeros(10, 2, 16, 2, 64, dtype=torch.bfloat16)
    _, lse = planned.run(query, cache, return_lse=True)
    assert -5e4 < lse.min() <= lse.max() < -49_990
    cache[2, 1, 8] = torch.nan
    output = planned.run(query, cache)
    assert output[0].isfinite().all()
    assert output[1:].isnan().all()


def test_run_wants_a_plan():
    with pytest.raises(WrongArgumentError, match="before run"):
        wrapper().run(torch.zeros(0, 4, 64, dtype=torch.bfloat16), torch.zeros(1, 2, 16, 2, 64, dtype=torch.bfloat16))


def test_unknown_arguments_and_small_workspaces_are_refused():
    with pytest.raises(TypeError):
        wrapper().plan(**PLAN, causal=True)
    with pytest.raises(WrongArgumentError, match="too small"):
        wrapper(float_workspace_buffer=torch.zeros(10, dtype=torch.uint8))
    with pytest.raises(WrongArgumentError, match="NHD or HND"):
        wrapper(kv_layout="nhd")
