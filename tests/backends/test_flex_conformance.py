"""The `flex` backend keeps the attention contract."""

from __future__ import annotations

from slotwise.testing import AttentionConformance


class TestFlex(AttentionConformance):
    component = "flex"
