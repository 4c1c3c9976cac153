"""The `flashinfer` backend keeps the attention contract, as the library's stand-in holds it to."""

from __future__ import annotations

import pytest

from slotwise.testing import AttentionConformance
from slotwise_backends.flashinfer_attention.backend import FlashInferAttention
from slotwise_backends.flashinfer_attention.capabilities import FlashInferOptions

from . import flashinfer_standin


class TestFlashInfer(AttentionConformance):
    component = FlashInferAttention
    options = FlashInferOptions(workspace_mib=16)
    device = "cpu"
    max_examples = 6

    @pytest.fixture(autouse=True)
    def _library(self, monkeypatch):
        flashinfer_standin.install(monkeypatch)
