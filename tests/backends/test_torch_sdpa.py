"""`torch_sdpa` against `reference` on arbitrary batches, and its planning."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotwise.interfaces.attention import MetadataRequest
from slotwise_backends.key_visibility import PlanKey
from slotwise_backends.reference import ReferenceAttention
from slotwise_backends.reference_capabilities import ReferenceOptions
from slotwise_backends.torch_sdpa import TorchSdpaAttention
from slotwise_backends.torch_sdpa_capabilities import TorchSdpaOptions
from slotwise_backends.torch_sdpa_planner import plan_for


@st.composite
def batches(draw):
    seq_lens = draw(st.lists(st.integers(1, 70), min_size=1, max_size=6))
    query_lens = [draw(st.one_of(st.just(1), st.integers(1, seq_len))) for seq_len in seq_lens]
    facts = draw(
        st.sampled_from(
            [{}, {"sliding_window": 1}, {"sliding_window": 7}, {"chunk_len": 8}, {"logits_soft_cap": 2.0, "sliding_window": 20}]
        )
    )
    return (
        {
            "seq_lens": seq_lens,
            "query_lens": query_lens,
            "layer_facts": facts,
            "block_size": draw(st.sampled_from([1, 4, 16])),
            "layout": draw(st.sampled_from(["nhd", "hnd"])),
            "num_kv_heads": draw(st.sampled_from([1, 2, 4])),
        },
        draw(st.sampled_from([1, 30, 4096])),
        draw(st.sampled_from([1, 5, 256])),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=batches())
def test_equals_the_reference_on_any_batch(make_case, drawn):
    shape, bucket_tokens, query_tile = drawn
    case = make_case(**shape)
    options = TorchSdpaOptions(decode_bucket_tokens=bucket_tokens, query_tile=query_tile)
    output, _ = case.run(TorchSdpaAttention, options=options)
    torch.testing.assert_close(output, case.run(ReferenceAttention)[0], rtol=0, atol=3e-6)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=batches(), rule=st.sampled_from(["all", "some", "mask"]), seed=st.integers(0, 2**16))
def test_equals_the_reference_where_rows_see_later_tokens(make_case, drawn, rule, seed):
    shape, bucket_tokens, query_tile = drawn
    case, generator = make_case(**shape), torch.Generator().manual_seed(seed)
    mask = [torch.rand(q * s, generator=generator) < 0.3 for q, s in zip(case.query_lens, case.seq_lens, strict=True)]
    rules = {
        "all": {"causal": False},
        "some": {"causal": torch.rand(len(case.seq_lens), generator=generator) < 0.5},
        "mask": {"custom_mask": torch.cat(mask)},
    }
    common, options = case.common(**rules[rule]), TorchSdpaOptions(decode_bucket_tokens=bucket_tokens, query_tile=query_tile)
    output, lse = case.run(TorchSdpaAttention, options=options, common=common, wants_lse=True)
    expected, expected_lse = case.run(ReferenceAttention, common=common, wants_lse=True)
    torch.testing.assert_close(output, expected, rtol=0, atol=3e-6)
    torch.testing.assert_close(lse, expected_lse, rtol=0, atol=1e-5)


def test_keys_that_a_mask_hides_from_every_row_are_not_read(make_case):
    case = make_case(query_lens=[3], seq_lens=[9])
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[:, 2:5] = False
    common = case.common(custom_mask=mask.flatten())
    clean = case.run(TorchSdpaAttention, common=common)[0]
    case.keys[0][2:5] = case.values[0][2:5] = math.nan
    assert torch.equal(case.run(TorchSdpaAttention, common=common)[0], clean)


def share_prefix(case, prefix_len):
    """Metadata whose rows all begin with the first row's blocks."""
    for tensors in (case.keys, case.values):
        for tensor in tensors[1:]:
            tensor[:prefix_len] = tensors[0][:prefix_len]
    common = case.common()
    common.block_table[1:, : prefix_len // case.block_size] = common.block_table[:1, : prefix_len // case.block_size]
    return common


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("facts", [{}, {"logits_soft_cap": 2.0}])
def test_common_prefix_changes_nothing_but_rounding(make_case, layout, facts):
    case = make_case(query_lens=[1, 1, 4, 1], seq_lens=[33, 60, 40, 47], layout=layout, layer_facts=facts)
    common, sinks = share_prefix(case, 32), torch.tensor([0.5, -1.0, 2.0, 0.0])
    expected, expected_lse = case.run(ReferenceAttention, common=common, wants_lse=True, sinks=sinks)
    case.common_prefix_len = 32
    output, lse = case.run(TorchSdpaAttention, common=common, wants_lse=True, sinks=sinks)
    torch.testing.assert_close(output, expected, rtol=0, atol=3e-6)
    torch.testing.assert_close(lse, expected_lse, rtol=0, atol=1e-5)


def test_common_prefix_is_gathered_once(make_case):
    case = make_case(query_lens=[1, 1, 1], seq_lens=[33, 36, 34])
    backend = case.backend(TorchSdpaAttention)
    metadata = backend.build_metadata(MetadataRequest(common=share_prefix(case, 32), common_prefix_len=32))
    plan = plan_for(metadata, PlanKey.of(case.layer, torch.float32, explicit=False, cascades=True))
    assert plan.prefix.rows.k.numel() == 32
    assert [bucket.width for bucket in plan.buckets] == [4]


def test_rows_that_end_inside_the_common_prefix_turn_the_cascade_off(make_case):
    case = make_case(query_lens=[1, 1], seq_lens=[32, 36])
    backend = case.backend(TorchSdpaAttention)
    metadata = backend.build_metadata(MetadataRequest(common=share_prefix(case, 32), common_prefix_len=32))
    assert plan_for(metadata, PlanKey.of(case.layer, torch.float32, explicit=False, cascades=True)).prefix is None


def plan_of(case, layer=None, **options):
    backend = case.backend(TorchSdpaAttention, TorchSdpaOptions(**options))
    metadata = backend.build_metadata(MetadataRequest(common=case.common()))
    return metadata, plan_for(metadata, PlanKey.of(layer or case.layer, torch.float32, explicit=False))


def test_rows_of_similar_length_share_a_bucket_and_padding_stays_bounded(make_case):
    lengths = [1000, 990, 700, 650, 300, 290, 40, 8, 3]
    _, plan = plan_of(make_case(query_lens=[1] * len(lengths), seq_lens=lengths), decode_bucket_tokens=8192)
    assert sum(bucket.query_rows.numel() for bucket in plan.buckets) == len(lengths)
    gathered = sum(bucket.query_rows.numel() * bucket.width for bucket in plan.buckets)
    assert gathered <= sum(lengths) / 0.7 + 32 * len(lengths)
    assert len(plan.buckets) <= 5


def test_buckets_hold_no_more_tokens_than_asked(make_case):
    _, plan = plan_of(make_case(query_lens=[1] * 8, seq_lens=[100] * 8), decode_bucket_tokens=250)
    assert [bucket.query_rows.numel() for bucket in plan.buckets] == [2, 2, 2, 2]
    assert all(bucket.bias is None for bucket in plan.buckets)


def test_a_row_longer_than_a_bucket_stands_alone(make_case):
    _, plan = plan_of(make_case(query_lens=[1, 1], seq_lens=[100, 100]), decode_bucket_tokens=1)
    assert [bucket.query_rows.numel() for bucket in plan.buckets] == [1, 1]


def test_layers_that_agree_share_one_plan(make_case):
    case = make_case(query_lens=[1, 3], seq_lens=[9, 9])
    metadata, plan = plan_of(case)
    assert plan_for(metadata, PlanKey.of(dataclasses.replace(case.layer, name="other", index=1), torch.float32, explicit=False)) is plan
    assert plan_for(metadata, PlanKey.of(dataclasses.replace(case.layer, sliding_window=4), torch.float32, explicit=False)) is not plan


def test_windowed_layers_gather_only_their_window(make_case):
    case = make_case(query_lens=[1, 4], seq_lens=[60, 60], layer_facts={"kind": "sliding_window", "sliding_window": 5})
    _, plan = plan_of(case)
    assert plan.buckets[0].width == 5
    assert plan.prefills[0].num_keys == 8


def test_works_inside_and_outside_inference_mode(make_case):
    case = make_case(query_lens=[1, 3], seq_lens=[9, 9])
    backend = case.backend(TorchSdpaAttention)
    case.backend = lambda *_: backend
    with torch.inference_mode():
        first, _ = case.run(TorchSdpaAttention)
    assert torch.equal(case.run(TorchSdpaAttention)[0], first)


def test_reference_in_float32_agrees_with_float64(make_case):
    case = make_case(query_lens=[300], seq_lens=[310])
    single, _ = case.run(ReferenceAttention, options=ReferenceOptions(compute_dtype="float32"))
    double, _ = case.run(ReferenceAttention)
    assert not torch.equal(single, double)
    torch.testing.assert_close(single, double, rtol=0, atol=1e-5)
