"""FlashInfer's page tables by hand, and that the stand-in refuses what the library would."""

from __future__ import annotations

import pytest
import torch

from slotwise_backends.flashinfer_attention.pages import paged_rows, shared_prefix

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
    ],
)
def test_a_wrong_run_is_refused(query, cache, words):
    planned = wrapper()
    planned.plan(**PLAN)
    good = torch.zeros(2, 4, 64, dtype=torch.bfloat16), torch.zeros(10, 2, 16, 2, 64, dtype=torch.bfloat16)
    planned.run(*good)
    with pytest.raises(WrongArgumentError, match=words):
        planned.run(good[0] if query is None else query, good[1] if cache is None else cache)


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
