"""The `triton` backend keeps the attention contract: its kernels in Triton's interpreter, on the CPU.

The interpreter takes milliseconds for what a kernel does in microseconds, so head dimensions, block sizes and dtypes are sampled; on a card
tests/gpu runs them all.
"""

from __future__ import annotations

import pytest

from slotwise.testing import AttentionConformance
from slotwise.testing.cases import PREFIX, kit_for

SPLIT_CASES = ("decodes", "very_long_context", "sinks", "lse", "cascade", "rows_that_see_nothing")


class TestTriton(AttentionConformance):
    component = "triton"
    max_examples = 4

    def dtypes(self):
        return ("float32", "bfloat16")

    def head_dims(self):
        return (16, 20, 64, 96)

    def block_sizes(self):
        return (4, 12, 1, 64)


@pytest.mark.parametrize("case", SPLIT_CASES)
def test_short_splits_are_merged_without_a_trace(case):
    """Keys of decode rows are split wherever there are 32 of them, so that parts are merged in most cases."""
    kit = kit_for("attention", "triton", options={"min_split_tokens": 16}, dtypes=lambda self: ("float32",))
    getattr(kit(), PREFIX + case)()


@pytest.mark.parametrize("case", ["decodes", "mixed_batches", "write_stores_each_token_in_its_slot"])
def test_float16_is_served_too(case):
    kit = kit_for("attention", "triton", dtypes=lambda self: ("float16",))
    getattr(kit(), PREFIX + case)()
