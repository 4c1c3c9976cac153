"""`torch_sdpa` against `reference` on arbitrary batches, and its planning."""

from __future__ import annotations

import dataclasses

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotwise.interfaces.attention import MetadataRequest
from slotwise_backends.reference import ReferenceAttention
from slotwise_backends.reference_capabilities import ReferenceOptions
from slotwise_backends.torch_sdpa import TorchSdpaAttention
from slotwise_backends.torch_sdpa_capabilities import TorchSdpaOptions


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


def plan_of(case, layer=None, **options):
    backend = case.backend(TorchSdpaAttention, TorchSdpaOptions(**options))
    metadata = backend.build_metadata(MetadataRequest(common=case.common()))
    return metadata, metadata.plan(layer or case.layer, torch.float32, explicit=False)


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
    assert metadata.plan(dataclasses.replace(case.layer, name="other", index=1), torch.float32, explicit=False) is plan
    assert metadata.plan(dataclasses.replace(case.layer, sliding_window=4), torch.float32, explicit=False) is not plan


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
