"""`cpu` attention: paged, ragged batches in native kernels.

A row's result does not depend on its batch, on how its sequence was cut into steps, or on the number of threads: each row's sums are taken
in one fixed order.

What this file does not know: how the kernels work (`kernels/tile.c`), how threads share the work (`kernels/dispatch.c`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from slotwise.interfaces.attention import (
    CROSS,
    ENCODER,
    ENCODER_ONLY,
    AttentionBackend,
    AttentionCall,
    AttentionLayer,
    AttentionSetup,
    CommonAttentionMetadata,
    KVWrite,
    MetadataRequest,
)
from slotwise_backends.cpu_attention.capabilities import CAPABILITIES
from slotwise_backends.cpu_attention.native import ELEMENT_TYPES, AttendArgs, KVView, WriteArgs, address, load_kernels


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMetadata:
    """One step; it holds the tensors whose addresses the kernels get."""

    common: CommonAttentionMetadata
    num_keys: torch.Tensor
    """[num_reqs] int32: keys of each row that this rank's cache holds."""
    causal_rows: torch.Tensor | None
    """[num_reqs] int8, where rows differ."""
    mask_start: torch.Tensor | None
    """[num_reqs] int64."""


class CpuAttention(AttentionBackend):
    """Attention in C."""

    capabilities = CAPABILITIES

    def __init__(self, setup: AttentionSetup) -> None:
        super().__init__(setup)
        self.kernels = load_kernels()

    def build_metadata(self, request: MetadataRequest) -> StepMetadata:
        common = request.common
        mask_start = None
        if common.custom_mask is not None:
            query_lens = common.query_start_loc[1:] - common.query_start_loc[:-1]
            areas = query_lens.long() * common.seq_lens.long()
            mask_start = torch.cumsum(areas, 0) - areas
        held = common.context_parallel_seq_lens
        return StepMetadata(
            common=common,
            num_keys=common.seq_lens if held is None else held,
            causal_rows=None if isinstance(common.causal, bool) else common.causal.to(torch.int8),
            mask_start=mask_start,
        )

    def update_block_table(self, metadata: StepMetadata, block_table: torch.Tensor, slot_mapping: torch.Tensor) -> StepMetadata:
        return replace(metadata, common=replace(metadata.common, block_table=block_table, slot_mapping=slot_mapping))

    def write_kv(self, write: KVWrite) -> None:
        layer, cache = write.layer, write.kv_cache
        key, value = _contiguous_heads(write.key), None if write.value is None else _contiguous_heads(write.value)
        key_cache, value_cache = _cache_views(layer, cache)
        is_plain = key.dtype == cache.dtype
        assert not is_plain or (write.k_scale == 1.0 and write.v_scale == 1.0), "only quantised caches have scales"
        args = WriteArgs(
            key=address(key),
            value=address(value),
            key_cache=KVView.of(key_cache),
            value_cache=KVView.of(value_cache),
            slots=address(write.slot_mapping),
            key_token_stride=key.stride(0),
            key_head_stride=key.stride(1),
            value_token_stride=0 if value is None else value.stride(0),
            value_head_stride=0 if value is None else value.stride(1),
            num_tokens=key.shape[0],
            num_kv_heads=layer.num_kv_heads,
            head_dim=layer.head_dim,
            block_size=key_cache.shape[1],
            source_type=ELEMENT_TYPES[key.dtype],
            kv_type=ELEMENT_TYPES[cache.dtype],
            num_threads=torch.get_num_threads(),
            k_scale=write.k_scale,
            v_scale=write.v_scale,
        )
        self.kernels.write(args)

    def forward(self, call: AttentionCall) -> None:
        step: StepMetadata | None = call.metadata
        num_tokens = 0 if step is None else step.common.num_tokens
        if num_tokens < call.output.shape[0]:
            call.output[num_tokens:].zero_()
            if call.lse is not None:
                call.lse[num_tokens:].fill_(-math.inf)
        if step is not None:
            self._attend(call, step)

    def _attend(self, call: AttentionCall, step: StepMetadata) -> None:
        layer, common, query = call.layer, step.common, _contiguous_heads(call.query)
        is_encoder, is_cross = layer.attention_type in (ENCODER, ENCODER_ONLY), layer.attention_type == CROSS
        key, value = _keys(call, is_encoder=is_encoder)
        num_keys = common.encoder_seq_lens if is_cross else common.seq_lens if is_encoder else step.num_keys
        is_causal = layer.causal and not is_cross
        args = AttendArgs(
            query=address(query),
            output=address(call.output),
            lse=address(call.lse),
            key=KVView.of(key),
            value=KVView.of(value),
            query_start_loc=address(common.query_start_loc),
            seq_lens=address(common.seq_lens),
            num_keys=address(num_keys),
            block_table=None if is_encoder else address(common.block_table),
            causal_rows=address(step.causal_rows) if is_causal else None,
            mask=None if is_cross else address(common.custom_mask),
            mask_start=address(step.mask_start),
            sinks=address(call.sinks) if common.context_parallel_rank == 0 else None,
            alibi_slopes=address(call.alibi_slopes),
            query_token_stride=query.stride(0),
            query_head_stride=query.stride(1),
            table_stride=common.block_table.stride(0),
            num_rows=common.num_reqs,
            num_heads=layer.num_heads,
            num_kv_heads=layer.num_kv_heads,
            head_dim=layer.head_dim,
            value_dim=layer.value_dim,
            block_size=key.shape[1],
            query_type=ELEMENT_TYPES[query.dtype],
            kv_type=ELEMENT_TYPES[key.dtype],
            is_causal=is_causal and common.causal is not False,
            window=layer.sliding_window or 0,
            chunk_len=layer.chunk_len or 0,
            num_ranks=common.context_parallel_size,
            rank=common.context_parallel_rank,
            num_threads=torch.get_num_threads(),
            score_scale=layer.scale * (1.0 if is_encoder else call.k_scale),
            value_scale=1.0 if is_encoder else call.k_scale if layer.is_mla else call.v_scale,
            soft_cap=layer.logits_soft_cap or 0.0,
        )
        self.kernels.attend(args)


def _keys(call: AttentionCall, *, is_encoder: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V as [blocks, tokens, heads, dim]; an encoder's tokens are one block."""
    if not is_encoder:
        return _cache_views(call.layer, call.kv_cache)
    assert call.key is not None  # encoders bring them
    assert call.value is not None
    return _contiguous_heads(call.key)[None], _contiguous_heads(call.value)[None]


def _cache_views(layer: AttentionLayer, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if layer.is_mla:
        return cache[:, :, None], cache[:, :, None]
    return cache[:, 0], cache[:, 1]


def _contiguous_heads(tensor: torch.Tensor) -> torch.Tensor:
    """Strided over tokens and heads as it may be, but not within a head."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
