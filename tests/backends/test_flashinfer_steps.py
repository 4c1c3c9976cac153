"""Steps of the `flashinfer` backend that the kit does not make: padded rows of a graph, masks after plain steps, encoders of all kinds."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from slotwise.interfaces.attention import CROSS, ENCODER, AttentionCall, AttentionLayer, AttentionSetup, MetadataRequest
from slotwise_backends.flashinfer_attention.backend import FlashInferAttention
from slotwise_backends.flashinfer_attention.capabilities import FlashInferOptions
from slotwise_backends.flashinfer_attention.pages import paged_rows, token_rows
from slotwise_backends.flashinfer_attention.wrappers import PlanKey, PrefillPlan, RaggedPlan, WrapperFactory
from slotwise_backends.reference import ReferenceAttention

from . import flashinfer_standin

OPTIONS = FlashInferOptions(workspace_mib=16)


@pytest.fixture(autouse=True)
def _library(monkeypatch):
    flashinfer_standin.install(monkeypatch)


@pytest.fixture
def case(make_case):
    def make(query_lens, seq_lens, **facts):
        return make_case(query_lens=query_lens, seq_lens=seq_lens, head_dim=64, dtype="bfloat16", kv_dtype="bfloat16", **facts)

    return make


def close(found, expected):
    """bfloat16 stores 8 bits: half a unit for the answer's rounding, and the truth is of the same inputs."""
    torch.testing.assert_close(found.double(), expected.double(), rtol=2.0**-7, atol=2.0**-9)


def run(case, backend, common, *, metadata=None, cache=None, **facts):
    """Output and LSE of one call."""
    call = AttentionCall(
        layer=facts.pop("layer", case.layer),
        query=case.query,
        key=facts.pop("key", None),
        value=facts.pop("value", None),
        kv_cache=case.cache(backend, common) if cache is None else cache,
        metadata=backend.build_metadata(MetadataRequest(common=common)) if metadata is None else metadata,
        output=torch.full_like(case.query, math.nan),
        lse=torch.full(case.query.shape[:2], math.nan),
        **facts,
    )
    backend.forward(call)
    return call.output, call.lse


def truth(case, common, **facts):
    exact = case.in_float64()
    exact.num_blocks = case.num_blocks
    facts = {name: fact.double() if isinstance(fact, torch.Tensor) else fact for name, fact in facts.items()}
    return run(exact, exact.backend(ReferenceAttention), common, **facts)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("padded_query_len", [0, 1])
def test_a_graph_of_three_rows_serves_two_and_a_padded_one(case, window, padded_query_len):
    three = case([1, 1, 1], [9, 20, 14], layer_facts={"sliding_window": window})
    common, backend = three.common(), three.backend(FlashInferAttention, OPTIONS)
    cache = three.cache(backend, common)
    captured = backend.build_metadata(MetadataRequest(common=common, for_graph_capture=True))
    before = run(three, backend, common, metadata=captured, cache=cache)
    close(before[0], truth(three, common)[0])
    starts = torch.tensor([0, 1, 2, 2 + padded_query_len], dtype=torch.int32)
    table = common.block_table.clone()
    table[2] = 2**30
    padded = replace(
        common,
        num_tokens=2 + padded_query_len,
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor([9, 20, 0], dtype=torch.int32),
        block_table=table,
    )
    backend.build_metadata(MetadataRequest(common=padded, for_graph_capture=True))
    output, lse = run(three, backend, common, metadata=captured, cache=cache)
    assert torch.equal(output[:2], before[0][:2])
    assert torch.equal(lse[:2], before[1][:2])
    assert torch.equal(output[2], torch.zeros_like(output[2]))
    assert lse[2].isneginf().all()


def test_a_captured_step_refuses_masks_and_longer_rows(case):
    one, two = case([1], [9]), case([2], [9])
    masked = one.common(custom_mask=torch.ones(9, dtype=torch.bool))
    for rows, common in ((one, masked), (two, two.common())):
        with pytest.raises(NotImplementedError, match="single tokens"):
            rows.backend(FlashInferAttention, OPTIONS).build_metadata(MetadataRequest(common=common, for_graph_capture=True))


def test_a_captured_step_between_plain_ones_doubles_no_wrapper(case):
    """Two layers of equal arguments and other keys: one wrapper each."""
    rows = case([1, 1], [9, 6], layer_facts={"causal": False})
    common = replace(rows.common(), encoder_seq_lens=torch.tensor([5, 2], dtype=torch.int32))
    cross = replace(rows.layer, name="cross", attention_type=CROSS)
    backend = rows.backend(FlashInferAttention, OPTIONS)
    run(rows, backend, common)
    backend.build_metadata(MetadataRequest(common=common, for_graph_capture=True))
    metadata = backend.build_metadata(MetadataRequest(common=common))
    for layer in (rows.layer, cross, rows.layer):
        close(run(rows, backend, common, metadata=metadata, layer=layer)[0], truth(rows, common, layer=layer)[0])


def test_masks_follow_plain_steps_on_one_instance(case):
    mixed = case([3, 1], [9, 6])
    backend = mixed.backend(FlashInferAttention, OPTIONS)
    mask = torch.rand(3 * 9 + 6, generator=torch.Generator().manual_seed(0)) < 0.7
    for common in (mixed.common(), mixed.common(custom_mask=mask), mixed.common(), mixed.common(custom_mask=mask)):
        close(run(mixed, backend, common)[0], truth(mixed, common)[0])


@pytest.mark.parametrize("custom_mask", [None, torch.zeros(0, dtype=torch.bool)])
def test_a_step_without_rows_is_not_planned(case, custom_mask):
    padding = replace(case([1], [1]).layer, name="padding")
    one = case([1], [1])
    nothing = torch.tensor([0, 0], dtype=torch.int32)
    common = replace(
        one.common(), num_tokens=0, query_start_loc=nothing, query_start_loc_cpu=nothing, seq_lens=nothing[:1], custom_mask=custom_mask
    )
    backend = one.backend(FlashInferAttention, OPTIONS)
    for layer in (padding, replace(padding, attention_type=ENCODER)):
        cache = torch.zeros(1, 2, 4, 2, 64, dtype=torch.bfloat16)
        output, lse = run(one, backend, common, cache=cache, layer=layer, key=one.keys[0], value=one.values[0])
        assert torch.equal(output, torch.zeros_like(output))
        assert lse.isneginf().all()


@pytest.mark.parametrize("what", ["layer", "step", "rows", "mask"])
def test_encoders_follow_the_causality_of_step_and_layer(case, what):
    prompts = case([5, 3], [5, 3], layer_facts={"attention_type": ENCODER, "causal": what != "layer"})
    mask = torch.rand(5 * 5 + 3 * 3, generator=torch.Generator().manual_seed(0)) < 0.7
    causal = {"layer": True, "step": False, "rows": torch.tensor([True, False]), "mask": True}[what]
    common = prompts.common(causal=causal, custom_mask=mask if what == "mask" else None)
    backend, cache = prompts.backend(FlashInferAttention, OPTIONS), torch.zeros(0)
    new = {"key": torch.cat(prompts.keys), "value": torch.cat(prompts.values), "cache": cache}
    close(run(prompts, backend, common, **new)[0], truth(prompts, common, **new)[0])


def test_a_cross_layer_beside_one_that_is_not_causal(case):
    mixed = case([1, 2], [9, 6], layer_facts={"causal": False})
    common = replace(mixed.common(), encoder_seq_lens=torch.tensor([5, 2], dtype=torch.int32))
    cross = replace(mixed.layer, name="cross", attention_type=CROSS, sliding_window=2)
    backend = mixed.backend(FlashInferAttention, OPTIONS)
    metadata = backend.build_metadata(MetadataRequest(common=common))
    for layer in (mixed.layer, cross, mixed.layer):
        close(run(mixed, backend, common, metadata=metadata, layer=layer)[0], truth(mixed, common, layer=layer)[0])


@pytest.mark.parametrize("num_heads", [5, 6, 7, 10])
def test_groups_that_cuda_cores_do_not_know_take_tensor_cores(case, num_heads):
    rows = case([1, 1], [9, 6], num_heads=num_heads, num_kv_heads=1)
    options = FlashInferOptions(workspace_mib=16, use_tensor_cores=False)
    close(run(rows, rows.backend(FlashInferAttention, options), rows.common())[0], truth(rows, rows.common())[0])


def factory(device):
    workspace = torch.zeros(16, dtype=torch.uint8, device=device)
    bfloat16 = torch.bfloat16
    return WrapperFactory(workspace=workspace, kv_layout="NHD", dtype=bfloat16, kv_dtype=bfloat16, use_tensor_cores=None)


def test_tables_lie_on_the_cpu_but_beside_a_mask():
    """Device `meta` stands for the card."""
    calls = []
    recorder = SimpleNamespace(plan=lambda **arguments: calls.append(arguments))
    layer = AttentionLayer(name="layer", index=0, num_heads=2, num_kv_heads=1, head_dim=64, scale=0.1)
    key = PlanKey.of(layer, causal=True)
    lens, mask = torch.tensor([2, 1]), torch.ones(5, dtype=torch.bool, device="meta")
    paged = paged_rows(lens, lens, torch.zeros(2, 1, dtype=torch.int32), page_size=4)
    for plan, rows, names in (
        (PrefillPlan(recorder, factory("meta"), key), paged, ("qo_indptr", "paged_kv_indptr", "paged_kv_last_page_len")),
        (RaggedPlan(recorder, factory("meta"), key), token_rows(lens, torch.device("cpu")), ("qo_indptr", "kv_indptr")),
    ):
        plan.plan(rows)
        plan.plan(rows, mask)
        plain, masked = calls[-2:]
        assert {plain[name].device.type for name in names} == {"cpu"}
        assert {masked[name].device.type for name in names} == {"meta"}


def test_setup_without_options_takes_the_usual_workspace(case):
    setup = case([1], [1]).backend(FlashInferAttention, OPTIONS).setup
    assert isinstance(setup, AttentionSetup)
    assert FlashInferAttention(replace(setup, options=None)).factory.workspace.numel() == 128 * 2**20
