"""The `torch_sdpa` backend keeps the attention contract, however its work is cut."""

from __future__ import annotations

from typing import ClassVar

from slotwise.testing import AttentionConformance


class TestTorchSdpa(AttentionConformance):
    component = "torch_sdpa"


class TestTorchSdpaInSmallPieces(AttentionConformance):
    component = "torch_sdpa"
    options: ClassVar = {"decode_bucket_tokens": 30, "query_tile": 4}
