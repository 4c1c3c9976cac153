from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.plugin.suggestions import did_you_mean, nearest

NAMES = ("reference", "torch_sdpa", "flash_attention")


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("refrence", "reference"),
        ("torch-sdpa", "torch_sdpa"),
        ("TORCH_SDPA", "torch_sdpa"),
        ("flash_attn", "flash_attention"),
        ("zzz", None),
        ("", None),
    ],
)
def test_suggests_the_nearest_name_or_none(word: str, wanted: str | None) -> None:
    assert nearest(word, NAMES) == wanted


def test_sentence_starts_with_a_blank_and_quotes_the_name() -> None:
    assert did_you_mean("refrence", NAMES) == ' Did you mean "reference"?'
    assert did_you_mean("zzz", NAMES) == ""


def test_a_known_word_is_not_suggested_for_itself() -> None:
    assert did_you_mean("reference", NAMES) == ""


@given(st.text(max_size=12), st.permutations(["alpha", "alphas", "beta", "Alpha"]))
def test_the_order_of_candidates_does_not_matter(word: str, candidates: list[str]) -> None:
    assert nearest(word, candidates) == nearest(word, sorted(candidates))
