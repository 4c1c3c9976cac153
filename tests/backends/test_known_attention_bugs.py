"""Faults that other engines had, with answers known by hand, on every backend that runs here: windows, empty rows, LSE, tails, sinks."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from slotwise.testing.attention_batch import AttentionBatch
from slotwise.testing.attention_kit import AttentionKit
from slotwise.testing.attention_scenario import Scenario
from slotwise.testing.cases import kit_for
from slotwise_backends.cpu_attention.capabilities import missing_library
from slotwise_backends.lse_merge import merge_parts

BACKENDS = ["reference", "torch_sdpa", "flex", "triton", *([] if missing_library() else ["cpu"])]
HUGE = 2**31 - 1


def kit(name: str) -> AttentionKit:
    return kit_for("attention", name)()  # type: ignore[return-value]


def run(name: str, batch: AttentionBatch) -> tuple[torch.Tensor, torch.Tensor | None]:
    call = kit(name).run(batch)
    return call.output, call.lse


def batch_of(name: str, scenario: Scenario, *, query=None, keys=None, values=None) -> AttentionBatch:
    """The scenario in float32 with these numbers; keys and values per row [num_keys, num_kv_heads, head_dim]."""
    batch = kit(name).batch(replace(scenario, dtype="float32"))
    if query is not None:
        batch.query = query
    if keys is not None:
        batch.keys = keys
    if values is not None:
        batch.values = values
    return batch


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(("window", "first_visible"), [(1, [0, 1, 2, 3, 4, 5]), (3, [0, 0, 0, 1, 2, 3]), (6, [0] * 6), (100, [0] * 6)])
def test_a_window_counts_the_position_itself(name, window, first_visible):
    """Visible counts 1, 2, 3, 3, 3, 3 for W = 3, whole, in chunks of 2 and 4, and token by token."""
    expected = torch.zeros(6, 16)
    for position, first in enumerate(first_visible):
        expected[position, first : position + 1] = 1 / (position - first + 1)
    for chunks in ((6,), (2, 4), (1,) * 6):
        done, found = 0, []
        for query_len in chunks:
            done += query_len
            scenario = Scenario(query_lens=(query_len,), seq_lens=(done,), num_heads=1, num_kv_heads=1, head_dim=16, block_size=4)
            batch = batch_of(
                name,
                replace(scenario, sliding_window=window),
                query=torch.zeros(query_len, 1, 16),
                keys=[torch.zeros(done, 1, 16)],
                values=[torch.eye(16)[:done, None]],
            )
            found.append(run(name, batch)[0][:, 0])
        torch.testing.assert_close(torch.cat(found), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", BACKENDS)
def test_rows_without_a_visible_key_stay_zero_through_two_layers(name):
    scenario = Scenario(query_lens=(2, 3), seq_lens=(4, 7), mask="nothing", wants_lse=True)
    first = batch_of(name, scenario)
    output, lse = run(name, first)
    assert output.abs().max() == 0
    assert torch.isneginf(lse).all()
    second = batch_of(name, replace(scenario, mask="tree"), query=output)
    assert torch.isfinite(run(name, second)[0]).all()


@pytest.mark.parametrize("name", BACKENDS)
def test_lse_is_a_natural_logarithm(name):
    scenario = Scenario(query_lens=(1,), seq_lens=(2,), num_heads=1, num_kv_heads=1, head_dim=16, scale=1.0, wants_lse=True)
    query, keys = torch.zeros(1, 1, 16), torch.zeros(2, 1, 16)
    query[..., 0], keys[1, :, 0] = 1.0, 1.0
    output, lse = run(name, batch_of(name, scenario, query=query, keys=[keys], values=[keys.clone()]))
    assert output[0, 0, 0].item() == pytest.approx(0.7310585786, abs=1e-6)
    assert lse.item() == pytest.approx(1.3132616875, abs=1e-6)
    merged, _ = merge_parts([output, torch.full((1, 1, 16), 2.0)], [lse, torch.full((1, 1), 2.0)])
    assert merged[0, 0, 0].item() == pytest.approx(1.5752103826, abs=1e-6)


@pytest.mark.parametrize("pair", list(itertools.permutations([name for name in BACKENDS if name != "triton"], 2)), ids="-".join)
def test_a_prefix_from_one_backend_and_a_suffix_from_another_make_the_whole(pair):
    """4096 keys; the suffix holds the query's own."""
    facts = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 16, "block_size": 64, "wants_lse": True}
    whole = batch_of(pair[0], Scenario(query_lens=(1,), seq_lens=(4096,), **facts))
    expected, _ = run("reference", whole)
    prefix = batch_of(
        pair[0],
        Scenario(query_lens=(1,), seq_lens=(3000,), **facts),
        query=whole.query,
        keys=[whole.keys[0][:3000]],
        values=[whole.values[0][:3000]],
    )
    suffix = batch_of(
        pair[1],
        Scenario(query_lens=(1,), seq_lens=(1096,), **facts),
        query=whole.query,
        keys=[whole.keys[0][3000:]],
        values=[whole.values[0][3000:]],
    )
    parts = [run(name, batch) for name, batch in zip(pair, (prefix, suffix), strict=True)]
    merged, _ = merge_parts([output for output, _ in parts], [lse for _, lse in parts])
    torch.testing.assert_close(merged, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("block_size", [12, 16])
def test_unwritten_tails_and_unused_table_entries_do_not_matter(name, block_size):
    """Lengths around a block; NaN and infinity in what nobody wrote; entries past a row's blocks 0 or a huge id."""
    facts = {"query_lens": (1,) * 5, "seq_lens": (1, 15, 16, 17, 40), "num_heads": 2, "num_kv_heads": 1, "block_size": block_size}
    results = []
    for poison, unused in ((0.0, 0), (math.nan, 0), (math.inf, 0), (math.nan, HUGE)):
        batch = batch_of(name, Scenario(**facts, poison=poison))
        table = batch.common.block_table.clone()
        for row, seq_len in enumerate(facts["seq_lens"]):
            table[row, -(-seq_len // block_size) :] = unused
        batch.common = replace(batch.common, block_table=table)
        results.append(run(name, batch)[0])
    assert torch.isfinite(results[0]).all()
    for other in results[1:]:
        assert torch.equal(other, results[0])


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("facts", [{}, {"logits_soft_cap": 3.0}], ids=["plain", "soft cap"])
def test_a_sink_joins_once_in_however_many_parts(name, num_ranks, facts):
    """Scores [0, 0], values [1, 1], sink 0: 2/3. With four ranks two hold no key at all; counting it twice would give 1/2, never 1."""
    outputs, lses = [], []
    for rank in range(num_ranks):
        scenario = Scenario(
            query_lens=(1,),
            seq_lens=(2,),
            num_heads=1,
            num_kv_heads=1,
            has_sinks=True,
            wants_lse=True,
            num_ranks=num_ranks,
            rank=rank,
            **facts,
        )
        batch = batch_of(name, scenario)
        batch.sinks = torch.zeros(1)
        batch.query = torch.zeros_like(batch.query)
        batch.values = [torch.ones_like(batch.values[0])]
        output, lse = run(name, batch)
        outputs.append(output)
        lses.append(lse)
    merged, _ = merge_parts(outputs, lses)
    torch.testing.assert_close(merged, torch.full_like(merged, 2 / 3), rtol=0, atol=1e-6)
