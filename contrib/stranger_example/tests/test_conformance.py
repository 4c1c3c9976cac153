"""The backend keeps the attention contract for all it claims; every case that is not claimed shows as skipped."""

from __future__ import annotations

from slotwise.testing import AttentionConformance
from slotwise_stranger.loop_attention import LoopAttention
from slotwise_stranger.loop_attention_component import LoopAttentionOptions


class TestLoop(AttentionConformance):
    component = LoopAttention
    options = LoopAttentionOptions()
