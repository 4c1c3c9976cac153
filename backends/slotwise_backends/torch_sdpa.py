"""`torch_sdpa` attention: torch operations only, built to be fast on a CPU.

The keys and values that a row sees, and no others, are copied from the paged cache into scratch memory; then torch's
`scaled_dot_product_attention` runs over them, decode rows of similar length together. Soft cap, sinks, ALiBi and LSE are not in that
function: layers that need them compute their scores openly, in float32 at least.

What this file does not know: which keys a query row sees (`key_visibility`), which rows of a step are computed together
(`torch_sdpa_planner`), where keys lie (`key_memory`), requests, scheduling.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from slotwise.interfaces.attention import DECODER, AttentionBackend, AttentionCall, AttentionSetup, MetadataRequest
from slotwise_backends.key_memory import KeyReader
from slotwise_backends.key_visibility import PlanKey
from slotwise_backends.torch_sdpa_capabilities import CAPABILITIES, TorchSdpaOptions
from slotwise_backends.torch_sdpa_plan import CommonPrefix, DecodeBucket, PrefillRows, QueryTile, StepMetadata
from slotwise_backends.torch_sdpa_planner import plan_for
from slotwise_backends.torch_sdpa_scores import explicit_attention, merge, with_alibi


class TorchSdpaAttention(AttentionBackend):
    """Attention through torch's own kernels. Results may differ in rounding with the batch."""

    capabilities = CAPABILITIES

    def __init__(self, setup: AttentionSetup) -> None:
        super().__init__(setup)
        self.options = setup.options if isinstance(setup.options, TorchSdpaOptions) else TorchSdpaOptions()
        self._reader = KeyReader(setup)

    def build_metadata(self, request: MetadataRequest) -> StepMetadata:
        common = request.common
        return StepMetadata(
            common=common,
            kv_layout=self.setup.kv_layout,
            block_size=self.setup.block_size,
            bucket_tokens=self.options.decode_bucket_tokens,
            query_tile=self.options.query_tile,
            starts=common.query_start_loc_cpu[: common.num_reqs + 1].tolist(),
            seq_lens=common.seq_lens[: common.num_reqs].tolist(),
            common_prefix_len=request.common_prefix_len,
        )

    def forward(self, call: AttentionCall) -> None:
        metadata: StepMetadata | None = call.metadata
        if metadata is None:
            call.output.zero_()
            return
        key = _plan_key(call)
        plan = plan_for(metadata, key)
        shared = None if plan.prefix is None else self._attend_to_prefix(call, key, plan.prefix)
        for bucket in plan.buckets:
            self._decode(call, key, bucket, shared)
        for rows in plan.prefills:
            self._prefill(call, key, rows)
        if metadata.num_query_rows < call.output.shape[0]:
            _clear(call, slice(metadata.num_query_rows, None))
        if plan.blind_rows is not None:
            _clear(call, plan.blind_rows)

    def _attend_to_prefix(self, call: AttentionCall, key: PlanKey, prefix: CommonPrefix) -> tuple[torch.Tensor, torch.Tensor]:
        """Output [num_rows, num_kv_heads, group_size, value_dim] and LSE of the decode rows over the prefix alone: one matrix product."""
        num_rows = prefix.query_rows.numel()
        query = _by_group(call, call.query.index_select(0, prefix.query_rows).to(key.dtype))
        stacked = query.transpose(0, 1).flatten(1, 2)[None]
        k, v = self._reader.read(call, key, prefix.rows, key.dtype)
        output, lse = explicit_attention(stacked, k, v, bias=None, scale=call.layer.scale, soft_cap=call.layer.logits_soft_cap, sinks=None)
        by_row = (call.layer.num_kv_heads, num_rows, query.shape[2])
        return output[0].view(*by_row, -1).transpose(0, 1), lse[0].view(by_row).transpose(0, 1)

    def _decode(self, call: AttentionCall, key: PlanKey, bucket: DecodeBucket, shared: tuple[torch.Tensor, torch.Tensor] | None) -> None:
        """shared: output and LSE of all buckets' rows over the common prefix, if there is one."""
        layer, num_rows = call.layer, bucket.query_rows.numel()
        query = _by_group(call, call.query.index_select(0, bucket.query_rows).to(key.dtype))
        k, v = self._reader.read(call, key, bucket.rows, key.dtype)
        if key.explicit or shared is not None:
            output, lse = _explicit_bucket(call, bucket, query, k, v)
            if shared is not None:
                output, lse = merge((shared[0][bucket.members], shared[1][bucket.members]), (output, lse))
            if call.lse is not None:
                call.lse.index_copy_(0, bucket.query_rows, lse.reshape(num_rows, layer.num_heads).to(call.lse.dtype))
        else:
            output = F.scaled_dot_product_attention(query, k, v, attn_mask=bucket.bias, scale=layer.scale)
        call.output.index_copy_(0, bucket.query_rows, output.reshape(num_rows, layer.num_heads, layer.value_dim).to(call.output.dtype))

    def _prefill(self, call: AttentionCall, key: PlanKey, rows: PrefillRows) -> None:
        k, v = self._reader.read(call, key, rows.rows, key.dtype)
        for tile in rows.tiles:
            query = call.query[tile.queries].to(key.dtype)
            tile_k, tile_v = k[:, :, tile.keys], v[:, :, tile.keys]
            if key.explicit:
                _explicit_tile(call, tile, query, tile_k, tile_v)
                continue
            output = F.scaled_dot_product_attention(
                query.transpose(0, 1)[None],
                tile_k,
                tile_v,
                attn_mask=tile.bias,
                is_causal=tile.is_causal,
                scale=call.layer.scale,
                enable_gqa=call.layer.num_heads != call.layer.num_kv_heads,
            )
            call.output[tile.queries] = output[0].transpose(0, 1)


def _plan_key(call: AttentionCall) -> PlanKey:
    """What the layer's plan depends on, and the dtype of the computation."""
    explicit = bool(call.layer.logits_soft_cap) or call.sinks is not None or call.lse is not None or call.alibi_slopes is not None
    cascades = call.metadata.common_prefix_len > 0 and _may_cascade(call)
    dtype = call.query.dtype
    if explicit or cascades or call.kv_cache.dtype.itemsize == 1:
        dtype = torch.promote_types(dtype, torch.float32)
    elif call.kv_cache.dtype != dtype:
        dtype = torch.promote_types(dtype, call.kv_cache.dtype)
    return PlanKey.of(call.layer, dtype, explicit=explicit, wants_distance=call.alibi_slopes is not None, cascades=cascades)


def _may_cascade(call: AttentionCall) -> bool:
    """Every decode row sees the whole common prefix, and this rank holds it."""
    layer, common = call.layer, call.metadata.common
    sees_all = layer.sliding_window is None and layer.chunk_len is None and common.custom_mask is None and call.alibi_slopes is None
    return sees_all and layer.attention_type == DECODER and common.context_parallel_size == 1


def _clear(call: AttentionCall, rows: slice | torch.Tensor) -> None:
    """Rows that see no key."""
    call.output[rows] = 0
    if call.lse is not None:
        call.lse[rows] = -math.inf


def _sinks(call: AttentionCall, shape: tuple[int, ...]) -> torch.Tensor | None:
    """The sinks of [num_heads] in `shape`; of several ranks that share a sequence the first one counts them."""
    is_first_rank = call.metadata.common.context_parallel_rank == 0
    return call.sinks.view(shape) if call.sinks is not None and is_first_rank else None


def _by_group(call: AttentionCall, query: torch.Tensor) -> torch.Tensor:
    """[num_rows, num_kv_heads, group_size, head_dim] of [num_rows, num_heads, head_dim]."""
    num_kv_heads = call.layer.num_kv_heads
    return query.view(query.shape[0], num_kv_heads, call.layer.num_heads // num_kv_heads, call.layer.head_dim)


def _explicit_bucket(
    call: AttentionCall, bucket: DecodeBucket, query: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [num_rows, num_kv_heads, group_size, value_dim] and LSE, sinks counted."""
    bias, by_group = bucket.bias, query.shape[1:3]
    if call.alibi_slopes is not None:
        bias = with_alibi(bias, call.alibi_slopes.view(*by_group, 1), bucket.distance)
    return explicit_attention(
        query, k, v, bias=bias, scale=call.layer.scale, soft_cap=call.layer.logits_soft_cap, sinks=_sinks(call, by_group)
    )


def _explicit_tile(call: AttentionCall, tile: QueryTile, query: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Query heads of one KV head are stacked into its rows: [1, num_kv_heads, group_size * num_queries, head_dim]."""
    layer, num_queries = call.layer, query.shape[0]
    group_size = layer.num_heads // layer.num_kv_heads
    stacked = _by_group(call, query).permute(1, 2, 0, 3).flatten(1, 2)[None]
    bias: torch.Tensor | None
    if call.alibi_slopes is not None:
        slopes = call.alibi_slopes.view(layer.num_kv_heads, group_size, 1, 1)
        bias = with_alibi(tile.bias, slopes, tile.distance).flatten(1, 2)
    else:
        bias = None if tile.bias is None else tile.bias.repeat(group_size, 1)
    sinks = _sinks(call, (layer.num_kv_heads, group_size))
    sinks = None if sinks is None else sinks.repeat_interleave(num_queries, dim=1)[None]
    output, lse = explicit_attention(stacked, k, v, bias=bias, scale=layer.scale, soft_cap=layer.logits_soft_cap, sinks=sinks)
    call.output[tile.queries] = output.view(layer.num_heads, num_queries, layer.value_dim).transpose(0, 1).to(call.output.dtype)
    if call.lse is not None:
        call.lse[tile.queries] = lse.view(layer.num_heads, num_queries).transpose(0, 1).to(call.lse.dtype)
