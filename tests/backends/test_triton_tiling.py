"""How the `triton` backend cuts its work: head dimensions, tiles of query rows, splits of keys."""

from __future__ import annotations

import pytest
import torch

from slotwise.interfaces.attention import AttentionLayer
from slotwise_backends.triton_attention.step import make_tiles
from slotwise_backends.triton_attention.tiling import choose_num_splits, cut, group_size, num_head_groups


@pytest.mark.parametrize(
    ("dim", "parts"),
    [(8, (16, 0)), (16, (16, 0)), (20, (16, 16)), (64, (64, 0)), (80, (64, 16)), (96, (64, 32)), (192, (128, 64)), (576, (512, 64))],
)
def test_head_dimensions_are_cut_into_powers_of_two(dim, parts):
    assert cut(dim) == parts


def taken(tiles, num_rows):
    return [(row, first) for row, first in zip(tiles.row.tolist(), tiles.first.tolist(), strict=True) if row < num_rows]


def test_rows_take_their_tiles_in_order_and_empty_rows_none():
    starts = torch.tensor([0, 1, 1, 10, 14], dtype=torch.int32)
    assert taken(make_tiles(starts, 14, 4), 4) == [(0, 0), (2, 0), (2, 4), (2, 8), (3, 0)]


def test_any_batch_of_that_size_fits_the_number_of_tiles():
    for lens in ([14, 0, 0], [1, 1, 12], [5, 5, 4], [4, 4, 6]):
        starts = torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()], dtype=torch.int32)
        tiles = make_tiles(starts, 14, 4)
        assert len(tiles.row) == 14 // 4 + 3
        assert len(taken(tiles, 3)) == sum(-(-length // 4) for length in lens)


def test_aligned_tiles_begin_before_the_row():
    starts = torch.tensor([0, 3], dtype=torch.int32)
    assert taken(make_tiles(starts, 3, 4, torch.tensor([3])), 1) == [(0, -3), (0, 1)]


def test_few_long_rows_are_split_and_many_rows_are_not():
    facts = {"num_processors": 132, "min_split_tokens": 256}
    assert choose_num_splits(num_tiles=8, longest=8192, **facts) == 32
    assert choose_num_splits(num_tiles=8, longest=512, **facts) == 2
    assert choose_num_splits(num_tiles=512, longest=8192, **facts) == 1


@pytest.mark.parametrize(("num_heads", "group", "num_groups"), [(8, 8, 1), (16, 16, 1), (128, 16, 8), (24, 8, 3)])
def test_many_heads_of_one_latent_are_shared_among_programs(num_heads, group, num_groups):
    layer = AttentionLayer(name="l", index=0, num_heads=num_heads, num_kv_heads=1, head_dim=576, latent_value_dim=512, scale=1.0)
    assert (group_size(layer), num_head_groups(layer)) == (group, num_groups)
