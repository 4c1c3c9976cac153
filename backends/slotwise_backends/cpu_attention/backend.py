"""`cpu` attention: paged, ragged batches in native kernels.

A row's result does not depend on its batch, on how its sequence was cut into steps, or on the number of threads: each row's sums are taken
in one fixed order.

What this file does not know: how the kernels work (`kernels/tile.c`), how threads share the work (`kernels/dispatch.c`).
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass, field, replace

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
from slotwise_backends.cpu_attention.native import ELEMENT_TYPES, AttendArgs, AttendStep, KVView, WriteArgs, address, load_kernels


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
    records: dict[tuple[str, bool], AttendStep] = field(default_factory=dict)
    """By attention type and causality of layers: what the kernels are told."""

    def record(self, layer: AttentionLayer) -> AttendStep:
        """Made by the first layer of its kind."""
        known = self.records.get((layer.attention_type, layer.causal))
        if known is None:
            known = self.records[layer.attention_type, layer.causal] = self._made(layer)
        return known

    def _made(self, layer: AttentionLayer) -> AttendStep:
        common = self.common
        is_encoder, is_cross = layer.attention_type in (ENCODER, ENCODER_ONLY), layer.attention_type == CROSS
        is_causal = layer.causal and not is_cross
        return AttendStep(
            query_start_loc=address(common.query_start_loc),
            seq_lens=address(common.seq_lens),
            num_keys=address(common.encoder_seq_lens if is_cross else common.seq_lens if is_encoder else self.num_keys),
            block_table=None if is_encoder else address(common.block_table),
            table_stride=common.block_table.stride(0),
            causal_rows=address(self.causal_rows) if is_causal else None,
            mask=None if is_cross else address(common.custom_mask),
            mask_start=address(self.mask_start),
            num_rows=common.num_reqs,
            is_causal=is_causal and common.causal is not False,
            num_ranks=common.context_parallel_size,
            rank=common.context_parallel_rank,
            num_threads=torch.get_num_threads(),
        )


class CpuAttention(AttentionBackend):
    """Attention in C."""

    capabilities = CAPABILITIES

    def __init__(self, setup: AttentionSetup) -> None:
        super().__init__(setup)
        self.kernels = load_kernels()
        self._layers: dict[int, BoundLayer] = {}

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
        return replace(metadata, common=replace(metadata.common, block_table=block_table, slot_mapping=slot_mapping), records={})

    def write_kv(self, write: KVWrite) -> None:
        bound = self._bound(write.layer, write.kv_cache)
        key, value = _contiguous_heads(write.key), None if write.value is None else _contiguous_heads(write.value)
        is_plain = key.dtype == write.kv_cache.dtype
        assert not is_plain or (write.k_scale == 1.0 and write.v_scale == 1.0), "only quantised caches have scales"
        args = bound.write
        args.key, args.source_type, args.num_tokens = key.data_ptr(), ELEMENT_TYPES[key.dtype], key.shape[0]
        args.key_token_stride, args.key_head_stride, _ = key.stride()
        args.value = None if value is None else value.data_ptr()
        args.value_token_stride, args.value_head_stride = (0, 0) if value is None else value.stride()[:2]
        args.slots, args.num_threads = write.slot_mapping.data_ptr(), torch.get_num_threads()
        args.k_scale, args.v_scale = write.k_scale, write.v_scale
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
        layer, query = call.layer, _contiguous_heads(call.query)
        is_encoder = layer.attention_type in (ENCODER, ENCODER_ONLY)
        args = (_encoder_layer(call) if is_encoder else self._bound(layer, call.kv_cache)).attend
        args.step = ctypes.addressof(step.record(layer))
        args.query, args.query_type = query.data_ptr(), ELEMENT_TYPES[query.dtype]
        args.query_token_stride, args.query_head_stride, _ = query.stride()
        args.output, args.lse = call.output.data_ptr(), address(call.lse)
        args.sinks = address(call.sinks) if step.common.context_parallel_rank == 0 else None
        args.alibi_slopes = address(call.alibi_slopes)
        args.score_scale = layer.scale * (1.0 if is_encoder else call.k_scale)
        args.value_scale = 1.0 if is_encoder else call.k_scale if layer.is_mla else call.v_scale
        self.kernels.attend(args)

    def _bound(self, layer: AttentionLayer, cache: torch.Tensor) -> BoundLayer:
        """The layer's records; made once for each layer and cache."""
        known = self._layers.get(id(layer))
        if known is None or known.cache is not cache:
            known = self._layers[id(layer)] = BoundLayer(layer, cache, *_cache_views(layer, cache))
        return known


class BoundLayer:
    """Records of the kernels' arguments in which everything is filled in that the layer and its cache decide: filling them in anew for each
    call would take longer than a short attention."""

    def __init__(self, layer: AttentionLayer, cache: torch.Tensor | None, key: torch.Tensor, value: torch.Tensor) -> None:
        """key, value: [blocks, tokens, heads, dim]."""
        self.layer = layer  # kept, so that its id stays its own
        self.cache = cache
        kv_type, block_size = ELEMENT_TYPES[key.dtype], key.shape[1]
        self.attend = AttendArgs(
            key=KVView.of(key),
            value=KVView.of(value),
            kv_type=kv_type,
            block_size=block_size,
            num_heads=layer.num_heads,
            num_kv_heads=layer.num_kv_heads,
            head_dim=layer.head_dim,
            value_dim=layer.value_dim,
            window=layer.sliding_window or 0,
            chunk_len=layer.chunk_len or 0,
            soft_cap=layer.logits_soft_cap or 0.0,
        )
        self.write = WriteArgs(
            key_cache=KVView.of(key),
            value_cache=KVView.of(value),
            num_kv_heads=layer.num_kv_heads,
            head_dim=layer.head_dim,
            block_size=block_size,
            kv_type=kv_type,
        )


def _encoder_layer(call: AttentionCall) -> BoundLayer:
    """An encoder's keys and values are no cache but what it brings: one block."""
    assert call.key is not None
    assert call.value is not None
    return BoundLayer(call.layer, None, _contiguous_heads(call.key)[None], _contiguous_heads(call.value)[None])


def _cache_views(layer: AttentionLayer, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if layer.is_mla:
        return cache[:, :, None], cache[:, :, None]
    return cache[:, 0], cache[:, 1]


def _contiguous_heads(tensor: torch.Tensor) -> torch.Tensor:
    """Strided over tokens and heads as it may be, but not within a head."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
