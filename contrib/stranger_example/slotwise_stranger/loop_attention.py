"""Attention `loop`: one request after the other, each a plain softmax over its blocks. Knows no windows, soft caps or sinks."""

from __future__ import annotations

import torch

from slotwise.interfaces.attention import AttentionBackend, AttentionCall, AttentionSetup, CommonAttentionMetadata, MetadataRequest
from slotwise_stranger.loop_attention_component import CAPABILITIES, LoopAttentionOptions


class LoopAttention(AttentionBackend):
    """Reads the cache through torch indexing, so both standard layouts serve; the inherited `write_kv` fills it."""

    capabilities = CAPABILITIES

    def __init__(self, setup: AttentionSetup) -> None:
        super().__init__(setup)
        options = LoopAttentionOptions.model_validate(setup.options)
        self.score_factor = 1.0 / options.softmax_temperature

    def build_metadata(self, request: MetadataRequest) -> CommonAttentionMetadata:
        """The step's batch serves as it is."""
        return request.common

    def forward(self, call: AttentionCall) -> None:
        """Fill `call.output` row by row; rows without tokens, and padding, become zero."""
        call.output.zero_()
        if call.metadata is None:
            return
        starts = call.metadata.query_start_loc_cpu.tolist()
        for row in range(call.metadata.num_reqs):
            if starts[row] < starts[row + 1]:
                self._attend_row(call, row, slice(starts[row], starts[row + 1]))

    def _attend_row(self, call: AttentionCall, row: int, tokens: slice) -> None:
        layer, common = call.layer, call.metadata
        seq_len = int(common.seq_lens[row])
        blocks = common.block_table[row, : -(-seq_len // self.setup.block_size)].long()
        # [blocks, block_size, heads, dim] -> [seq_len, heads, dim]; each KV head serves a group of query heads.
        group = layer.num_heads // layer.num_kv_heads
        key = call.kv_cache[blocks, 0].flatten(0, 1)[:seq_len].float().repeat_interleave(group, dim=1)
        value = call.kv_cache[blocks, 1].flatten(0, 1)[:seq_len].float().repeat_interleave(group, dim=1)

        scores = torch.einsum("qhd,khd->hqk", call.query[tokens].float(), key) * (layer.scale * self.score_factor)
        key_positions = torch.arange(seq_len, device=scores.device)
        future = key_positions[None, :] > common.positions[tokens][:, None]
        scores.masked_fill_(future[None], float("-inf"))
        call.output[tokens] = torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), value).to(call.output.dtype)
