"""The `reference` backend keeps the attention contract, in both of its precisions."""

from __future__ import annotations

from slotwise.testing import AttentionConformance


class TestReference(AttentionConformance):
    component = "reference"


class TestReferenceInSinglePrecision(AttentionConformance):
    component = "reference"
    options = {"compute_dtype": "float32"}

    def dtypes(self):
        return tuple(dtype for dtype in super().dtypes() if dtype != "float64")
