"""`slotwise bench attention`: figures stand beside errors, floors are counted by hand, and who cannot take part is named."""

from __future__ import annotations

import json

import pytest

from slotwise.cli.app import run
from slotwise_contrib.bench.attention import measure
from slotwise_contrib.bench.attention_batch import AttentionShape, RandomBatch, usual_shapes

SMALL = ["--rows", "2", "--contexts", "20", "--prompts", "9", "--heads", "4,2,16", "--rounds", "2"]


def test_work_is_counted_from_what_is_visible():
    shape = AttentionShape(query_lens=(1, 3), seq_lens=(10, 3), num_heads=4, num_kv_heads=2, head_dim=8)
    assert shape.num_visible_pairs == 10 + (1 + 2 + 3)
    assert shape.flops == 4 * 4 * 8 * 16
    assert shape.bytes_moved == (2 * 13 * 2 * 8 + 2 * 4 * 4 * 8) * 4


def test_a_window_bounds_the_work():
    shape = AttentionShape(query_lens=(1, 3), seq_lens=(10, 3), num_heads=1, num_kv_heads=1, head_dim=1, sliding_window=2)
    assert shape.num_visible_pairs == 2 + (1 + 2 + 2)
    assert shape.bytes_moved == (2 * (2 + 3) + 2 * 4) * 4


def test_quantised_storage_moves_fewer_bytes():
    wide = AttentionShape(query_lens=(1,), seq_lens=(64,))
    narrow = AttentionShape(query_lens=(1,), seq_lens=(64,), kv_dtype="int8")
    assert wide.bytes_moved - narrow.bytes_moved == 2 * 64 * 3 * 64 * 3


def test_blocks_of_all_rows_are_distinct():
    batch = RandomBatch(shape=AttentionShape(query_lens=(1, 5), seq_lens=(33, 20)), device="cpu")
    blocks = [*batch.common.block_table[0, :3].tolist(), *batch.common.block_table[1, :2].tolist()]
    assert sorted(blocks) == [1, 2, 3, 4, 5]
    assert batch.num_blocks == 6


def test_shapes_are_decodes_of_all_sizes_and_prompts():
    titles = [shape.title for shape in usual_shapes(num_rows=(1, 8), contexts=(64,), prompts=(32,))]
    assert titles == ["1 x 1 of 64", "8 x 1 of 64", "1 x 32 of 32"]


def test_every_backend_has_an_error_beside_its_time():
    shapes = usual_shapes(num_rows=(3,), contexts=(40,), prompts=(17,))
    seen = []
    result = measure(("torch_sdpa", "reference"), shapes, device="cpu", num_rounds=2, advance=lambda: seen.append(1))
    assert len(seen) == len(result.shapes) == 2
    for shape in result.shapes:
        assert [times.backend for times in shape.times] == ["torch_sdpa", "reference"]
        assert all(times.error < 1e-5 for times in shape.times)
        assert all(times.parts["forward"].num_samples == 2 for times in shape.times)
        assert shape.floor_us > 0


def test_the_error_of_a_wrong_backend_is_seen(monkeypatch):
    from slotwise_backends.torch_sdpa import TorchSdpaAttention

    forward = TorchSdpaAttention.forward

    def wrong(self, call):
        forward(self, call)
        call.output.mul_(1.01)

    monkeypatch.setattr(TorchSdpaAttention, "forward", wrong)
    result = measure(
        ("torch_sdpa",), usual_shapes(num_rows=(2,), contexts=(9,), prompts=()), device="cpu", num_rounds=1, advance=lambda: None
    )
    assert result.shapes[0].times[0].error == pytest.approx(0.01, rel=0.2)


def test_the_command_prints_a_table_per_shape(capsys):
    assert run(["bench", "attention", "--backends", "torch_sdpa,reference", *SMALL]) == 0
    out = capsys.readouterr().out
    assert "2 x 1 of 20" in out
    assert "1 x 9 of 9" in out
    assert "GB/s" in out


def test_who_does_not_fit_is_named_with_the_reason(capsys):
    assert run(["bench", "attention", "--backends", "torch_sdpa,reference", "--dtype", "float64", *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    first = found["shapes"][0]
    refused, ran = first["refused"], [times["backend"] for times in first["times"]]
    assert "reference" in ran
    assert set(refused) | set(ran) == {"torch_sdpa", "reference"}


@pytest.mark.parametrize("heads", ["4,2", "a,b,c", "4,0,16"])
def test_bad_head_counts_are_refused(capsys, heads):
    assert run(["bench", "attention", "--heads", heads]) != 0
    assert "--heads" in capsys.readouterr().err
