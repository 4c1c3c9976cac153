"""The `flash_attention` backend keeps the attention contract with each version of the library, as their stand-ins hold it to."""

from __future__ import annotations

import pytest

from slotwise.testing import AttentionConformance
from slotwise_backends.flash_attention.backend import FlashAttention
from slotwise_backends.flash_attention.capabilities import FlashAttentionOptions

from . import flash_attention_standin


class FlashAttentionConformance(AttentionConformance):
    component = FlashAttention
    device = "cpu"
    max_examples = 6


class TestVersion2(FlashAttentionConformance):
    options = FlashAttentionOptions(version=2)

    @pytest.fixture(autouse=True)
    def _library(self, monkeypatch):
        flash_attention_standin.install(monkeypatch, 2)

    def block_sizes(self):
        return (256, 512)


class TestVersion3(FlashAttentionConformance):
    options = FlashAttentionOptions(version=3, num_splits=2)

    @pytest.fixture(autouse=True)
    def _library(self, monkeypatch):
        flash_attention_standin.install(monkeypatch, 3)


class TestVersion4(FlashAttentionConformance):
    options = FlashAttentionOptions(version=4)

    @pytest.fixture(autouse=True)
    def _library(self, monkeypatch):
        flash_attention_standin.install(monkeypatch, 4)
