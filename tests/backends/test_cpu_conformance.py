"""The `cpu` backend keeps the attention contract."""

from __future__ import annotations

from slotwise.testing import AttentionConformance


class TestCpu(AttentionConformance):
    component = "cpu"
