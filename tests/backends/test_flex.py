"""`flex` against `reference`: its packs, the two forms of its masks, and compiled code."""

from __future__ import annotations

import dataclasses
import shutil

import pytest
import torch

from slotwise.interfaces.attention import MetadataRequest
from slotwise_backends.flex import FlexAttention
from slotwise_backends.flex_capabilities import FlexOptions
from slotwise_backends.key_visibility import PlanKey
from slotwise_backends.reference import ReferenceAttention

MIXED = {"query_lens": [1, 5, 1, 3, 1, 7], "seq_lens": [9, 5, 17, 12, 1, 16]}


def random_mask(case):
    generator = torch.Generator().manual_seed(3)
    sizes = [query_len * seq_len for query_len, seq_len in zip(case.query_lens, case.seq_lens, strict=True)]
    return torch.rand(sum(sizes), generator=generator) < 0.4


def plan_of(case, common, *, is_compiled, **options):
    metadata = case.backend(FlexAttention, FlexOptions(**options)).build_metadata(MetadataRequest(common=common))
    return metadata.plan(PlanKey.of(case.layer, torch.float32, explicit=False), is_compiled=is_compiled)


@pytest.mark.parametrize("facts", [{}, {"sliding_window": 4}, {"chunk_len": 5}, {"causal": False}])
@pytest.mark.parametrize("rule", ["causal", "some", "mask"])
@pytest.mark.parametrize(("num_ranks", "rank"), [(1, 0), (3, 1)])
def test_rule_for_compiled_code_equals_the_table(make_case, facts, rule, num_ranks, rank):
    case = make_case(**MIXED, layer_facts=facts)
    changes = {"some": {"causal": torch.arange(6) % 2 == 0}, "mask": {"custom_mask": random_mask(case)}}.get(rule, {})
    common = dataclasses.replace(case.common(**changes), context_parallel_size=num_ranks, context_parallel_rank=rank)
    (compiled,), (eager,) = (plan_of(case, common, is_compiled=each).packs for each in (True, False))
    rows, columns = torch.arange(compiled.query_rows.numel())[:, None], torch.arange(compiled.position_of_key.numel())[None, :]
    found = compiled.block_mask.mask_mod(None, None, rows, columns)
    num_rows, num_keys = eager.query_rows.numel(), eager.position_of_key.numel()
    expected = eager.block_mask.mask_mod(None, None, rows[:num_rows], columns[:, :num_keys])
    assert torch.equal(found[:num_rows, :num_keys], expected)
    assert not found[num_rows:].any()
    assert not found[:, num_keys:].any()


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("masked", [False, True])
def test_small_packs_give_the_same(make_case, layout, masked):
    case = make_case(query_lens=[1, 9, 1], seq_lens=[9, 20, 30], layout=layout)
    common = case.common(custom_mask=random_mask(case)) if masked else case.common()
    expected, expected_lse = case.run(ReferenceAttention, common=common, wants_lse=True)
    output, lse = case.run(FlexAttention, common=common, wants_lse=True, options=FlexOptions(max_scores=60))
    torch.testing.assert_close(output, expected, rtol=0, atol=3e-6)
    torch.testing.assert_close(lse, expected_lse, rtol=0, atol=1e-5)


def test_packs_hold_no_more_scores_than_asked(make_case):
    case = make_case(query_lens=[1, 9, 1, 1], seq_lens=[9, 20, 30, 4])
    packs = plan_of(case, case.common(), is_compiled=False, max_scores=60).packs
    assert all(pack.query_rows.numel() * pack.position_of_key.numel() <= 60 for pack in packs)
    assert torch.cat([pack.query_rows for pack in packs]).tolist() == list(range(12))


def test_compiled_steps_have_one_pack_of_a_padded_shape(make_case):
    case = make_case(query_lens=[1, 9, 1, 1], seq_lens=[9, 200, 30, 4])
    (pack,) = plan_of(case, case.common(), is_compiled=True).packs
    assert (pack.num_real_rows, pack.query_rows.numel(), pack.position_of_key.numel()) == (12, 128, 256)


def compiled_case(make_case, **changes):
    shape = {"query_lens": [1, 5, 1], "seq_lens": [30, 9, 70], "head_dim": 16} | changes
    return make_case(**shape)


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="inductor needs a C++ compiler")


@needs_compiler
@pytest.mark.slow
def test_compiled_code_equals_the_reference_for_all_steps_of_one_shape(make_case):
    for seed, changes in enumerate(({}, {"seq_lens": [60, 5, 3]})):
        case = compiled_case(make_case, seed=seed, **changes)
        output, _ = case.run(FlexAttention, options=FlexOptions(compile=True))
        torch.testing.assert_close(output, case.run(ReferenceAttention)[0], rtol=0, atol=3e-6)


@needs_compiler
@pytest.mark.slow
def test_compiled_rules_of_masks_and_scores_equal_the_reference(make_case):
    case = compiled_case(make_case, layer_facts={"sliding_window": 6, "logits_soft_cap": 2.0}, layout="hnd")
    common, facts = case.common(custom_mask=random_mask(case)), {"alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.0])}
    output, _ = case.run(FlexAttention, options=FlexOptions(compile=True), common=common, **facts)
    torch.testing.assert_close(output, case.run(ReferenceAttention, common=common, **facts)[0], rtol=0, atol=3e-6)


def test_layers_that_compiled_code_cannot_serve_run_uncompiled(make_case):
    """On a CPU it returns no LSE, which sinks need too."""
    case, sinks = compiled_case(make_case), torch.tensor([0.0, 1.5, -2.0, 4.0])
    output, lse = case.run(FlexAttention, options=FlexOptions(compile=True), sinks=sinks, wants_lse=True)
    expected, expected_lse = case.run(ReferenceAttention, sinks=sinks, wants_lse=True)
    torch.testing.assert_close(output, expected, rtol=0, atol=3e-6)
    torch.testing.assert_close(lse, expected_lse, rtol=0, atol=1e-5)
