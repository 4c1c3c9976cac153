"""The rules of attention, case by case, with answers known by hand or by a dense float64 formula. Both backends."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from slotwise.interfaces.attention import AttentionCall, MetadataRequest
from slotwise_backends.reference import ReferenceAttention


def dense_attention(case, row, visible, *, sinks=None, slopes=None):
    """Textbook attention of one request in float64: [query_len, num_heads, head_dim] and LSE. visible: [query_len, seq_len]."""
    start, end = sum(case.query_lens[:row]), sum(case.query_lens[: row + 1])
    outputs, lses = (
        torch.zeros(end - start, case.num_heads, case.head_dim).double(),
        torch.full((end - start, case.num_heads), -math.inf).double(),
    )
    for i in range(end - start):
        position = case.seq_lens[row] - (end - start) + i
        seen = visible[i].nonzero().flatten()
        for head in range(case.num_heads):
            kv_head = head // (case.num_heads // case.num_kv_heads)
            keys, values = case.keys[row][seen, kv_head].double(), case.values[row][seen, kv_head].double()
            scores = keys @ case.query[start + i, head].double() * case.layer.scale
            if case.layer.logits_soft_cap:
                scores = case.layer.logits_soft_cap * torch.tanh(scores / case.layer.logits_soft_cap)
            if slopes is not None:
                scores = scores - slopes[head].double() * (position - seen)
            if seen.numel() == 0:
                continue
            logits = scores if sinks is None else torch.cat([scores, sinks[head : head + 1].double()])
            lses[i, head] = torch.logsumexp(logits, 0)
            outputs[i, head] = torch.exp(scores - lses[i, head]) @ values
    return outputs, lses


def causal(query_len, seq_len, *, window=None, chunk=None):
    q, k = torch.arange(seq_len - query_len, seq_len)[:, None], torch.arange(seq_len)[None, :]
    visible = k <= q
    if window:
        visible &= k > q - window
    if chunk:
        visible &= k >= q // chunk * chunk
    return visible


def assert_matches_dense(case, output, lse=None, *, window=None, chunk=None, tolerance=2e-6, **facts):
    start = 0
    for row, (query_len, seq_len) in enumerate(zip(case.query_lens, case.seq_lens, strict=True)):
        expected, expected_lse = dense_attention(case, row, causal(query_len, seq_len, window=window, chunk=chunk), **facts)
        torch.testing.assert_close(output[start : start + query_len].double(), expected, rtol=0, atol=tolerance)
        if lse is not None:
            torch.testing.assert_close(lse[start : start + query_len].double(), expected_lse, rtol=0, atol=4 * tolerance)
        start += query_len


MIXED = {"query_lens": [1, 5, 1, 3, 1, 7], "seq_lens": [9, 5, 17, 12, 1, 16]}


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("block_size", [1, 4, 12, 16])
def test_mixed_batch_equals_dense_attention(make_case, backend_class, layout, block_size):
    case = make_case(**MIXED, layout=layout, block_size=block_size)
    assert_matches_dense(case, case.run(backend_class)[0])


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("window", [1, 3, 6, 100])
def test_sliding_window_counts_the_position_itself(make_case, backend_class, window, layout):
    case = make_case(**MIXED, layout=layout, layer_facts={"kind": "sliding_window", "sliding_window": window})
    assert_matches_dense(case, case.run(backend_class)[0], window=window)


@pytest.mark.parametrize("chunk", [1, 4, 5, 100])
def test_chunked_local_sees_its_own_chunk(make_case, backend_class, chunk):
    case = make_case(**MIXED, layer_facts={"kind": "chunked_local", "chunk_len": chunk})
    assert_matches_dense(case, case.run(backend_class)[0], chunk=chunk)


@pytest.mark.parametrize("split", [[6], [2, 4], [1, 1, 1, 1, 1, 1], [5, 1]])
@pytest.mark.parametrize(("window", "first_visible"), [(3, [0, 0, 0, 1, 2, 3]), (1, [0, 1, 2, 3, 4, 5]), (6, [0] * 6), (100, [0] * 6)])
def test_window_of_six_positions_averages_the_visible_ones(make_case, backend_class, split, window, first_visible):
    """q = k = 0 and one-hot values: the output shows who was seen, and with what weight."""
    rows, done = [], 0
    for query_len in split:
        done += query_len
        case = make_case(
            query_lens=[query_len],
            seq_lens=[done],
            num_heads=1,
            num_kv_heads=1,
            layer_facts={"kind": "sliding_window", "sliding_window": window},
        )
        case.query, case.keys, case.values = torch.zeros(query_len, 1, 8), [torch.zeros(done, 1, 8)], [torch.eye(8)[:done, None]]
        rows.append(case.run(backend_class)[0][:, 0])
    expected = torch.zeros(6, 8)
    for position, first in enumerate(first_visible):
        expected[position, first : position + 1] = 1 / (position - first + 1)
    torch.testing.assert_close(torch.cat(rows), expected, rtol=0, atol=1e-6)


def test_soft_cap_comes_after_the_scale_and_before_the_mask(make_case, backend_class):
    case = make_case(**MIXED, layer_facts={"logits_soft_cap": 0.5, "scale": 1.0})
    assert_matches_dense(case, case.run(backend_class)[0])


@pytest.mark.parametrize("facts", [{}, {"logits_soft_cap": 2.0}, {"kind": "sliding_window", "sliding_window": 3}])
def test_sinks_join_the_denominator_once(make_case, backend_class, facts):
    case = make_case(**MIXED, layer_facts=facts)
    sinks = torch.tensor([0.0, 1.5, -2.0, 4.0])
    output, lse = case.run(backend_class, sinks=sinks, wants_lse=True)
    assert_matches_dense(case, output, lse, window=facts.get("sliding_window"), sinks=sinks)


def test_sink_of_zero_with_two_equal_scores_leaves_two_thirds(make_case, backend_class):
    case = make_case(query_lens=[1], seq_lens=[2], num_heads=1, num_kv_heads=1)
    case.query, case.values = torch.zeros(1, 1, 8), [torch.ones(2, 1, 8)]
    output, _ = case.run(backend_class, sinks=torch.zeros(1))
    torch.testing.assert_close(output, torch.full((1, 1, 8), 2 / 3))


def test_lse_is_the_natural_logarithm(make_case, backend_class):
    """Scores [0, 1] with values [0, 1] give 0.7310585786 and LSE 1.3132616875; merged with score 2, value 2: 1.5752103826."""
    case = make_case(query_lens=[1], seq_lens=[2], num_heads=1, num_kv_heads=1, head_dim=1, layer_facts={"scale": 1.0})
    case.query, case.keys, case.values = (
        torch.ones(1, 1, 1),
        [torch.tensor([0.0, 1.0]).view(2, 1, 1)],
        [torch.tensor([0.0, 1.0]).view(2, 1, 1)],
    )
    output, lse = case.run(backend_class, wants_lse=True)
    assert output.item() == pytest.approx(0.7310585786, abs=1e-6)
    assert lse.item() == pytest.approx(1.3132616875, abs=1e-6)
    total = math.exp(lse.item()) + math.exp(2.0)
    assert (output.item() * math.exp(lse.item()) + 2.0 * math.exp(2.0)) / total == pytest.approx(1.5752103826, abs=1e-6)


def test_lse_of_a_mixed_batch(make_case, backend_class):
    case = make_case(**MIXED)
    output, lse = case.run(backend_class, wants_lse=True)
    assert_matches_dense(case, output, lse)


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize(("seq_len", "block_size"), [(1, 16), (15, 16), (16, 16), (17, 16), (90, 12)])
@pytest.mark.parametrize("facts", [{}, {"kind": "sliding_window", "sliding_window": 5}, {"logits_soft_cap": 3.0}])
def test_unwritten_slots_never_matter(make_case, backend_class, poison, seq_len, block_size, facts, layout):
    shape = {
        "query_lens": [1, min(3, seq_len), 1],
        "seq_lens": [seq_len, seq_len, max(1, seq_len - 3)],
        "block_size": block_size,
        "layout": layout,
    }
    clean = make_case(**shape, poison=0.0, layer_facts=facts).run(backend_class)[0]
    poisoned = make_case(**shape, poison=poison, layer_facts=facts).run(backend_class)[0]
    assert torch.isfinite(poisoned).all()
    assert torch.equal(poisoned, clean)


@pytest.mark.parametrize("facts", [{}, {"kind": "sliding_window", "sliding_window": 5}])
def test_garbage_in_the_unused_block_table_never_matters(make_case, backend_class, facts):
    clean = make_case(**MIXED, layer_facts=facts).run(backend_class)[0]
    assert torch.equal(make_case(**MIXED, unused_block_id=2**31 - 1, layer_facts=facts).run(backend_class)[0], clean)


def test_null_blocks_before_the_window_never_matter(make_case, backend_class):
    case = make_case(query_lens=[1, 2], seq_lens=[14, 15], layer_facts={"kind": "sliding_window", "sliding_window": 5})
    whole = case.run(backend_class)[0]
    backend, common = case.backend(backend_class), case.common()
    cache = case.cache(backend, common)
    common.block_table[:, :2] = 0
    output = torch.empty_like(case.query)
    metadata = backend.build_metadata(MetadataRequest(common=common))
    backend.forward(
        AttentionCall(layer=case.layer, query=case.query, key=None, value=None, kv_cache=cache, metadata=metadata, output=output)
    )
    assert torch.equal(output, whole)


def test_padding_rows_and_tokens_yield_zero_and_minus_infinity(make_case, backend_class):
    case = make_case(query_lens=[2, 1, 0], seq_lens=[4, 6, 0], num_padding_tokens=3)
    output, lse = case.run(backend_class, wants_lse=True)
    assert torch.equal(output[3:], torch.zeros(3, 4, 8))
    assert torch.isneginf(lse[3:]).all()
    assert torch.isfinite(output).all()


def test_without_metadata_the_output_is_zero(make_case, backend_class):
    case = make_case(query_lens=[2], seq_lens=[2])
    output = torch.full_like(case.query, math.nan)
    case.backend(backend_class).forward(
        AttentionCall(layer=case.layer, query=case.query, key=None, value=None, kv_cache=torch.empty(0), metadata=None, output=output)
    )
    assert torch.equal(output, torch.zeros_like(output))


def test_strided_query_is_read_correctly(make_case, backend_class):
    case = make_case(**MIXED)
    plain = case.run(backend_class)[0]
    wide = torch.randn(case.query.shape[0], 2 * case.num_heads, case.head_dim)
    wide[:, ::2] = case.query
    case.query = wide[:, ::2]
    backend, common = case.backend(backend_class), case.common()
    cache, output = case.cache(backend, common), torch.empty(case.query.shape)
    metadata = backend.build_metadata(MetadataRequest(common=common))
    backend.forward(
        AttentionCall(layer=case.layer, query=case.query, key=None, value=None, kv_cache=cache, metadata=metadata, output=output)
    )
    torch.testing.assert_close(output, plain, rtol=0, atol=1e-6)


def test_layers_of_one_instance_may_differ(make_case, backend_class):
    """One metadata object serves layers of different window, cap and scale."""
    case = make_case(**MIXED)
    backend, common = case.backend(backend_class), case.common()
    cache, metadata = case.cache(backend, common), backend.build_metadata(MetadataRequest(common=common))
    plain_layer = case.layer
    for facts in ({}, {"sliding_window": 3}, {"logits_soft_cap": 1.0}, {"sliding_window": 7, "scale": 1.0}, {"chunk_len": 4}, {}):
        case.layer = dataclasses.replace(plain_layer, **facts)
        output = torch.empty_like(case.query)
        backend.forward(
            AttentionCall(layer=case.layer, query=case.query, key=None, value=None, kv_cache=cache, metadata=metadata, output=output)
        )
        assert_matches_dense(case, output, window=facts.get("sliding_window"), chunk=facts.get("chunk_len"))


def test_alibi_shifts_by_distance(make_case):
    case = make_case(**MIXED)
    slopes = torch.tensor([0.5, 0.25, 0.125, 1.0])
    assert_matches_dense(case, case.run(ReferenceAttention, alibi_slopes=slopes)[0], slopes=slopes)


def test_causal_may_differ_per_request(make_case):
    case = make_case(query_lens=[3, 4], seq_lens=[5, 4])
    output, _ = case.run(ReferenceAttention, common=case.common(causal=torch.tensor([True, False])))
    torch.testing.assert_close(output[:3].double(), dense_attention(case, 0, causal(3, 5))[0], rtol=0, atol=2e-6)
    torch.testing.assert_close(output[3:].double(), dense_attention(case, 1, torch.ones(4, 4).bool())[0], rtol=0, atol=2e-6)


def test_custom_mask_replaces_the_causal_rule(make_case):
    case = make_case(query_lens=[3, 2], seq_lens=[5, 4])
    masks = [torch.rand(3, 5, generator=case.generator) > 0.5, torch.rand(2, 4, generator=case.generator) > 0.5]
    masks[0][1] = False
    packed = torch.cat([mask.flatten() for mask in masks])
    output, lse = case.run(ReferenceAttention, common=case.common(custom_mask=packed), wants_lse=True)
    torch.testing.assert_close(output[:3].double(), dense_attention(case, 0, masks[0])[0], rtol=0, atol=2e-6)
    torch.testing.assert_close(output[3:].double(), dense_attention(case, 1, masks[1])[0], rtol=0, atol=2e-6)
    assert torch.equal(output[1], torch.zeros(4, 8))
    assert torch.isneginf(lse[1]).all()


def test_reference_row_is_bit_equal_whatever_the_other_rows_are(make_case):
    case = make_case(**MIXED)
    together = case.run(ReferenceAttention)[0]
    start = 0
    for row, query_len in enumerate(case.query_lens):
        alone = make_case(query_lens=[query_len], seq_lens=[case.seq_lens[row]])
        alone.query, alone.keys, alone.values = case.query[start : start + query_len], [case.keys[row]], [case.values[row]]
        assert torch.equal(alone.run(ReferenceAttention)[0], together[start : start + query_len])
        start += query_len


@pytest.mark.parametrize("model_dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("kv_dtype", ["auto", "float32"])
@pytest.mark.parametrize("facts", [{}, {"logits_soft_cap": 2.0}])
def test_low_precision_error_is_that_of_its_own_rounding(make_case, backend_class, model_dtype, kv_dtype, facts):
    """The inputs are exact; what remains is rounding of probabilities and output, a few units in the last place of values below 4."""
    case = make_case(**MIXED, dtype=model_dtype, kv_dtype=kv_dtype, layer_facts=facts)
    exact = case.in_float64().run(ReferenceAttention)[0]
    bound = 4 * torch.finfo(getattr(torch, model_dtype)).eps * exact.abs().max()
    assert (case.run(backend_class)[0].double() - exact).abs().max() <= bound


def test_claims_equal_the_registered_record(backend_class):
    from slotwise_plugins.registrations.attention import Cpu, Reference, TorchSdpa

    records = {"ReferenceAttention": Reference, "TorchSdpaAttention": TorchSdpa, "CpuAttention": Cpu}
    component = records[backend_class.__name__].slotwise_component()
    assert component.capabilities == backend_class.capabilities
    assert component.implementation == f"{backend_class.__module__}:{backend_class.__name__}"
