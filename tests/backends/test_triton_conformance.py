"""The `triton` backend keeps the attention contract: its kernels in Triton's interpreter, on the CPU."""

from __future__ import annotations

import pytest

from slotwise.testing import AttentionConformance
from slotwise.testing.cases import PREFIX, kit_for


class TestTriton(AttentionConformance):
    component = "triton"
    max_examples = 6


SPLIT_CASES = (
    "decodes",
    "very_long_context",
    "sinks",
    "lse",
    "soft_cap",
    "cascade",
    "rows_that_see_nothing",
    "chunks_of_a_prompt_give_the_whole",
)


@pytest.mark.parametrize("case", SPLIT_CASES)
def test_short_splits_are_merged_without_a_trace(case):
    """Keys of decode rows are split wherever there are 32 of them, so that parts are merged in most cases."""
    kit = kit_for("attention", "triton", options={"min_split_tokens": 16}, dtypes=lambda self: ("float32",))
    getattr(kit(), PREFIX + case)()
