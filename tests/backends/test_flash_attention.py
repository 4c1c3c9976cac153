"""Which version of FlashAttention runs, and that the stand-ins refuse what the library would."""

from __future__ import annotations

import math

import pytest
import torch

from slotwise.errors import ComponentUnavailableError, ResolutionError
from slotwise_backends.flash_attention.choice import Wish, choose_library
from slotwise_backends.lse_merge import merge_parts

from . import flash_attention_standin
from .library_checks import WrongArgumentError


@pytest.mark.parametrize(
    ("installed", "capability", "block_size", "chosen"),
    [
        ((2, 3, 4), (9, 0), 16, 4),
        ((2, 3), (9, 0), 16, 3),
        ((2, 3, 4), (8, 0), 256, 2),
        ((2, 3, 4), (10, 0), 16, 4),
        ((2,), (9, 0), 512, 2),
    ],
)
def test_auto_takes_the_newest_version_that_suits(monkeypatch, installed, capability, block_size, chosen):
    flash_attention_standin.install(monkeypatch, *installed)
    assert choose_library("auto", Wish(capability=capability, block_size=block_size)).version == chosen


@pytest.mark.parametrize(
    ("version", "capability", "block_size", "words"),
    [
        (3, (8, 0), 16, ["version 3", "9.0 to 9.9", "8.0"]),
        (2, (9, 0), 16, ["multiple of 256", "kv_cache.block_size is 16"]),
        ("auto", (8, 0), 16, ["version 4", "version 3", "multiple of 256"]),
    ],
)
def test_a_version_that_cannot_run_is_refused_with_the_reason(monkeypatch, version, capability, block_size, words):
    flash_attention_standin.install(monkeypatch, 2, 3, 4)
    with pytest.raises(ResolutionError) as refused:
        choose_library(version, Wish(capability=capability, block_size=block_size))
    assert all(word in str(refused.value) for word in words)


def test_heads_that_version_4_lacks_on_blackwell_are_refused(monkeypatch):
    flash_attention_standin.install(monkeypatch, 4)
    assert choose_library(4, Wish(capability=(9, 0), block_size=16, head_dims=(192,))).version == 4
    assert choose_library(4, Wish(capability=(10, 0), block_size=16, head_dims=(128, 256))).version == 4
    with pytest.raises(ResolutionError, match="no heads of 192"):
        choose_library(4, Wish(capability=(10, 0), block_size=16, head_dims=(64, 192)))


def test_splits_are_asked_of_the_version_that_has_them(monkeypatch, caplog):
    flash_attention_standin.install(monkeypatch, 2, 3, 4)
    with caplog.at_level("INFO"):
        assert choose_library("auto", Wish(capability=(9, 0), block_size=16, num_splits=4)).version == 3
    assert "version 3 of the library (asked: auto)" in caplog.text
    with pytest.raises(ResolutionError, match="does not split keys"):
        choose_library(4, Wish(capability=(9, 0), block_size=16, num_splits=4))


def test_a_missing_library_is_named_with_its_cure(monkeypatch):
    flash_attention_standin.install(monkeypatch)
    with pytest.raises(ComponentUnavailableError, match="pip install --pre flash-attn-4"):
        choose_library(4, Wish(capability=(9, 0), block_size=16))


def arguments(**changes):
    usual = {
        "q": torch.randn(3, 4, 16).half(),
        "k": torch.randn(5, 16, 2, 16).half(),
        "v": torch.randn(5, 16, 2, 16).half(),
        "cu_seqlens_q": torch.tensor([0, 1, 3], dtype=torch.int32),
        "seqused_k": torch.tensor([9, 20], dtype=torch.int32),
        "max_seqlen_q": 2,
        "max_seqlen_k": 20,
        "page_table": torch.tensor([[1, 0], [2, 3]], dtype=torch.int32),
        "softmax_scale": 0.25,
        "causal": True,
        "return_lse": True,
    }
    return usual | changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q": torch.randn(3, 4, 16)}, "q must be of"),
        ({"k": torch.randn(5, 16, 2, 16)}, "k must be of"),
        ({"q": torch.randn(3, 4, 20).half()}, "size 20"),
        ({"q": torch.randn(3, 3, 16).half()}, "divide"),
        ({"q": torch.randn(3, 16, 4).half().transpose(1, 2)}, "contiguous last"),
        ({"cu_seqlens_q": torch.tensor([0, 1, 3])}, "cu_seqlens_q must be of"),
        ({"cu_seqlens_q": torch.tensor([0, 2, 1], dtype=torch.int32)}, "must not decrease"),
        ({"cu_seqlens_q": torch.tensor([1, 1, 3], dtype=torch.int32)}, "begin with 0"),
        ({"cu_seqlens_k": torch.tensor([0, 9, 29], dtype=torch.int32)}, "not supported with cu_seqlens_k"),
        ({"seqused_k": torch.tensor([9, 20])}, "seqused_k must be of"),
        ({"max_seqlen_q": 1}, "max_seqlen_q"),
        ({"max_seqlen_k": 19}, "max_seqlen_k"),
        ({"max_seqlen_k": torch.tensor(20)}, "max_seqlen_k"),
        ({"page_table": torch.tensor([[1, 0], [2, 3]])}, "block_table must be of"),
        ({"page_table": torch.tensor([[1, 0]], dtype=torch.int32)}, "size 2"),
        ({"softmax_scale": 1}, "softmax_scale"),
        ({"causal": 1}, "causal"),
        ({"softcap": None}, "softcap"),
        ({"window_size": 4}, "window_size"),
        ({"window_size": (3.0, 0)}, "window_size"),
        ({"num_splits": 0}, "num_splits"),
    ],
)
def test_the_stand_in_refuses_what_the_library_would(changes, words):
    flash_attention_standin.flash_attn_varlen_func_4(**arguments())
    with pytest.raises(WrongArgumentError, match=words):
        flash_attention_standin.flash_attn_varlen_func_4(**arguments(**changes))


def test_the_stand_in_knows_no_other_arguments():
    with pytest.raises(TypeError):
        flash_attention_standin.flash_attn_varlen_func_4(**arguments(block_table=None))


def test_version_2_wants_blocks_of_256():
    facts = arguments()
    with pytest.raises(WrongArgumentError, match="divisible by 256"):
        flash_attention_standin.flash_attn_varlen_func_2(
            facts["q"],
            facts["k"],
            facts["v"],
            facts["cu_seqlens_q"],
            torch.tensor([0, 9, 29], dtype=torch.int32),
            2,
            20,
            softmax_scale=0.25,
            block_table=facts["page_table"],
        )


def test_parts_merge_to_the_known_value():
    """Scores [0, 1] with values [0, 1], and score [2] with value [2]; with LSE in base 2 the merge would go wrong by 0.08."""
    outputs = [torch.tensor([[[0.7310585786]]]), torch.tensor([[[2.0]]])]
    lses = [torch.tensor([[1.3132616875]]), torch.tensor([[2.0]])]
    output, lse = merge_parts(outputs, lses)
    assert output.item() == pytest.approx(1.5752103826, abs=1e-6)
    assert lse.item() == pytest.approx(math.log(1 + math.e + math.e**2), abs=1e-6)
    in_base_2, _ = merge_parts(outputs, [lse / math.log(2) for lse in lses])
    assert abs(in_base_2.item() - 1.5752103826) > 0.05


def test_empty_parts_count_nothing():
    nothing = torch.tensor([[-math.inf]])
    output, lse = merge_parts([torch.full((1, 1, 2), math.nan), torch.ones(1, 1, 2)], [nothing, torch.zeros(1, 1)])
    assert output.tolist() == [[[1.0, 1.0]]]
    assert lse.item() == 0.0
    output, lse = merge_parts([torch.full((1, 1, 2), math.nan)], [nothing])
    assert output.tolist() == [[[0.0, 0.0]]]
    assert lse.item() == -math.inf


def test_a_long_sequence_in_parts_equals_the_whole():
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 3, 16), torch.randn(4096, 3, 16), torch.randn(4096, 3, 16)

    def part(keys):
        scores = torch.einsum("qhd,khd->qhk", query, key[keys]) / 4
        return torch.einsum("qhk,khd->qhd", torch.softmax(scores, -1), value[keys]), torch.logsumexp(scores, -1)

    whole, whole_lse = part(slice(None))
    parts = [part(slice(0, 100)), part(slice(100, 3000)), part(slice(3000, 4096))]
    output, lse = merge_parts([each for each, _ in parts], [each for _, each in parts])
    torch.testing.assert_close(output, whole, rtol=0, atol=1e-6)
    torch.testing.assert_close(lse, whole_lse, rtol=0, atol=1e-5)
