"""`torch_sdpa` attention: torch operations only, built to be fast on a CPU.

The keys and values that a row sees, and no others, are copied from the paged cache into scratch memory; then torch's
`scaled_dot_product_attention` runs over them, decode rows of similar length together. Soft cap, sinks and LSE are not in that
function: layers that need them compute their scores openly, in float32.

What this file does not know: which cache rows belong to a query row (`torch_sdpa_plan`), requests, scheduling.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F

from slotwise.interfaces.attention import HND, AttentionBackend, AttentionCall, AttentionSetup, MetadataRequest
from slotwise_backends.torch_sdpa_capabilities import CAPABILITIES, TorchSdpaOptions
from slotwise_backends.torch_sdpa_plan import DecodeBucket, PrefillRows, QueryTile, StepMetadata


class TorchSdpaAttention(AttentionBackend):
    """Attention through torch's own kernels. Results may differ in rounding with the batch."""

    capabilities = CAPABILITIES

    def __init__(self, setup: AttentionSetup) -> None:
        super().__init__(setup)
        self.options = setup.options if isinstance(setup.options, TorchSdpaOptions) else TorchSdpaOptions()
        self._scratch: dict[str, torch.Tensor] = {}

    def build_metadata(self, request: MetadataRequest) -> StepMetadata:
        common = request.common
        starts = common.query_start_loc_cpu[: common.num_reqs + 1].tolist()
        seq_lens = common.seq_lens[: common.num_reqs].tolist()
        return StepMetadata(
            common=common,
            kv_layout=self.setup.kv_layout,
            block_size=self.setup.block_size,
            bucket_tokens=self.options.decode_bucket_tokens,
            query_tile=self.options.query_tile,
            starts=starts,
            seq_lens=seq_lens,
            has_empty_rows=any(seq_len == 0 and starts[i] < starts[i + 1] for i, seq_len in enumerate(seq_lens)),
        )

    def forward(self, call: AttentionCall) -> None:
        metadata: StepMetadata | None = call.metadata
        if metadata is None:
            call.output.zero_()
            return
        self._clear_uncovered(call, metadata)
        layer = call.layer
        explicit = bool(layer.logits_soft_cap) or call.sinks is not None or call.lse is not None
        dtype = torch.float32 if explicit else torch.promote_types(call.query.dtype, call.kv_cache.dtype)
        plan = metadata.plan(layer, dtype, explicit)
        for bucket in plan.buckets:
            self._decode(call, bucket, dtype, explicit)
        for rows in plan.prefills:
            self._prefill(call, rows, dtype, explicit)

    def _clear_uncovered(self, call: AttentionCall, metadata: StepMetadata) -> None:
        """Rows of padding, and of requests without keys, see no key."""
        first = 0 if metadata.has_empty_rows else metadata.num_query_rows
        if first < call.output.shape[0]:
            call.output[first:].zero_()
            if call.lse is not None:
                call.lse[first:].fill_(-math.inf)

    def _decode(self, call: AttentionCall, bucket: DecodeBucket, dtype: torch.dtype, explicit: bool) -> None:
        layer, num_rows = call.layer, bucket.query_rows.numel()
        group_size = layer.num_heads // layer.num_kv_heads
        query = call.query.index_select(0, bucket.query_rows).to(dtype).view(num_rows, layer.num_kv_heads, group_size, layer.head_dim)
        k = self._gather(call, "k", bucket.k_rows, num_rows, dtype)
        v = self._gather(call, "v", bucket.v_rows, num_rows, dtype)
        if explicit:
            sinks = None if call.sinks is None else call.sinks.view(1, layer.num_kv_heads, group_size)
            output, lse = _explicit_attention(query, k, v, bias=bucket.bias, scale=layer.scale, soft_cap=layer.logits_soft_cap, sinks=sinks)
            if call.lse is not None:
                call.lse.index_copy_(0, bucket.query_rows, lse.reshape(num_rows, layer.num_heads))
        else:
            output = F.scaled_dot_product_attention(query, k, v, attn_mask=bucket.bias, scale=layer.scale)
        call.output.index_copy_(0, bucket.query_rows, output.reshape(num_rows, layer.num_heads, layer.head_dim).to(call.output.dtype))

    def _prefill(self, call: AttentionCall, rows: PrefillRows, dtype: torch.dtype, explicit: bool) -> None:
        k = self._gather(call, "k", rows.k_rows, 1, dtype)
        v = self._gather(call, "v", rows.v_rows, 1, dtype)
        for tile in rows.tiles:
            query = call.query[tile.queries].to(dtype)
            tile_k, tile_v = k[:, :, tile.keys], v[:, :, tile.keys]
            if explicit:
                self._explicit_tile(call, tile, query, tile_k, tile_v)
                continue
            output = F.scaled_dot_product_attention(
                query.transpose(0, 1)[None],
                tile_k,
                tile_v,
                attn_mask=tile.bias,
                is_causal=tile.bias is None,
                scale=call.layer.scale,
                enable_gqa=call.layer.num_heads != call.layer.num_kv_heads,
            )
            call.output[tile.queries] = output[0].transpose(0, 1)

    def _explicit_tile(self, call: AttentionCall, tile: QueryTile, query: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Query heads of one KV head are stacked into its rows: [1, num_kv_heads, group_size * num_queries, head_dim]."""
        layer, num_queries = call.layer, query.shape[0]
        group_size = layer.num_heads // layer.num_kv_heads
        stacked = query.view(num_queries, layer.num_kv_heads, group_size, layer.head_dim).permute(1, 2, 0, 3).flatten(1, 2)[None]
        bias = None if tile.bias is None else tile.bias.repeat(group_size, 1)
        sinks = None
        if call.sinks is not None:
            sinks = call.sinks.view(layer.num_kv_heads, group_size).repeat_interleave(num_queries, dim=1)[None]
        output, lse = _explicit_attention(stacked, k, v, bias=bias, scale=layer.scale, soft_cap=layer.logits_soft_cap, sinks=sinks)
        call.output[tile.queries] = output.view(layer.num_heads, num_queries, layer.head_dim).transpose(0, 1).to(call.output.dtype)
        if call.lse is not None:
            call.lse[tile.queries] = lse.view(layer.num_heads, num_queries).transpose(0, 1)

    def _gather(
        self, call: AttentionCall, which: Literal["k", "v"], cache_rows: torch.Tensor, num_requests: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """[num_requests, num_kv_heads, num_keys, head_dim] in scratch memory that the next gather of `which` overwrites."""
        layer, scale = call.layer, call.k_scale if which == "k" else call.v_scale
        if self.setup.kv_layout == HND:
            memory = call.kv_cache.permute(0, 1, 3, 2, 4).view(-1, layer.head_dim)
            gathered = self._select(memory, cache_rows, which).view(num_requests, layer.num_kv_heads, -1, layer.head_dim)
        else:
            memory = call.kv_cache.view(-1, layer.num_kv_heads * layer.head_dim)
            gathered = self._select(memory, cache_rows, which).view(num_requests, -1, layer.num_kv_heads, layer.head_dim).transpose(1, 2)
        gathered = gathered.to(dtype)
        return gathered if scale == 1.0 else gathered * scale

    def _select(self, memory: torch.Tensor, rows: torch.Tensor, name: str) -> torch.Tensor:
        """index_select into memory kept between calls: fresh pages cost several times the copy itself."""
        size = rows.numel() * memory.shape[1]
        scratch = self._scratch.get(name)
        if scratch is None or scratch.numel() < size or scratch.dtype != memory.dtype:
            with torch.inference_mode(False):
                scratch = self._scratch[name] = torch.empty(size, dtype=memory.dtype, device=memory.device)
        return torch.index_select(memory, 0, rows, out=scratch[:size].view(rows.numel(), memory.shape[1]))


def _explicit_attention(
    query: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    bias: torch.Tensor | None,
    scale: float,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output like `query` [batch, num_kv_heads, rows, head_dim] and LSE [batch, num_kv_heads, rows], float32.

    Every row sees at least one key. sinks: broadcastable to [batch, num_kv_heads, rows]; they join the denominator once.
    """
    scores = torch.matmul(query, k.transpose(-1, -2)).mul_(scale)
    if soft_cap:
        scores.div_(soft_cap).tanh_().mul_(soft_cap)
    if bias is not None:
        scores.add_(bias)
    lse = torch.logsumexp(scores, dim=-1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.float())
    weights = scores.sub_(lse[..., None]).exp_()
    return torch.matmul(weights, v), lse
