"""What the `triton` backend must not confuse: strides, captured steps of different kinds, prefixes under batch invariance."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from slotwise.interfaces.attention import AttentionCall, MetadataRequest
from slotwise_backends.triton_attention.backend import TritonAttention


def attend(backend, case, cache, query=None, **request):
    """The case's output with metadata asked for by `request`."""
    metadata = backend.build_metadata(MetadataRequest(**request))
    output = torch.empty_like(case.query)
    query = case.query if query is None else query
    backend.forward(AttentionCall(layer=case.layer, query=query, key=None, value=None, kv_cache=cache, metadata=metadata, output=output))
    return output


def test_a_query_whose_elements_lie_apart_is_read_as_it_is(make_case):
    case = make_case(query_lens=[3, 1], seq_lens=[9, 7])
    backend, common = case.backend(TritonAttention), case.common()
    cache = case.cache(backend, common)
    apart = case.query.repeat_interleave(2, dim=-1)[..., ::2]
    assert torch.equal(attend(backend, case, cache, apart, common=common), attend(backend, case, cache, common=common))


def test_keys_and_values_whose_elements_lie_apart_are_written_as_they_are(make_case):
    case = make_case(query_lens=[3, 1], seq_lens=[9, 7], poison=0.0)
    backend, common = case.backend(TritonAttention), case.common()
    want = case.cache(backend, common)
    case.keys, case.values = ([rows.repeat_interleave(2, dim=-1)[..., ::2] for rows in tensors] for tensors in (case.keys, case.values))
    assert torch.equal(case.cache(backend, common), want)


@pytest.mark.parametrize("later", ["non_causal", "non_causal_by_row", "masked"])
def test_a_captured_step_is_not_refreshed_by_a_step_of_another_kind(make_case, later):
    case = make_case(query_lens=[3, 2], seq_lens=[9, 7])
    backend, common = case.backend(TritonAttention), case.common()
    cache = case.cache(backend, common)
    mask = torch.ones(3 * 9 + 2 * 7, dtype=torch.bool)
    facts = {
        "non_causal": {"causal": False},
        "non_causal_by_row": {"causal": torch.zeros(2, dtype=torch.bool)},
        "masked": {"custom_mask": mask},
    }
    other = dataclasses.replace(common, **facts[later])
    causal = attend(backend, case, cache, common=common, for_graph_capture=True)
    found = attend(backend, case, cache, common=other, for_graph_capture=True)
    assert torch.equal(found, attend(backend, case, cache, common=other))
    assert not torch.equal(found, causal)


def test_an_announced_prefix_changes_no_bit_under_batch_invariance(make_case):
    case = make_case(query_lens=[1, 1], seq_lens=[100, 90])
    case.keys[1][:64], case.values[1][:64] = case.keys[0][:64], case.values[0][:64]
    common = case.common()
    common.block_table[1, :16] = common.block_table[0, :16]
    backend = TritonAttention(dataclasses.replace(case.backend(TritonAttention).setup, batch_invariant=True))
    cache = case.cache(backend, common)
    want = attend(backend, case, cache, common=common)
    assert torch.equal(attend(backend, case, cache, common=common, common_prefix_len=64), want)
