"""`reference` attention: the definition of correct, one request after the other, in float64.

Every other backend is compared with this one, so each line here is the plainest statement of its rule. Speed is no aim.

What this file does not know: batching, other backends, how the cache is filled.

Rules, in order: score = scale * q.k; soft cap; ALiBi; mask; softmax with the sink in its denominator; weighted sum of values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
    MetadataRequest,
)
from slotwise_backends.reference_capabilities import CAPABILITIES, ReferenceOptions

QUERY_TILE = 256
"""Query rows computed at once; bounds the memory of the scores. One where results must not depend on what else is computed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestRows:
    """One request's part of the batch."""

    query_start: int
    query_end: int
    seq_len: int
    """Cached and new tokens; query row i has position seq_len - (query_end - i)."""
    encoder_seq_len: int
    """Positions of its encoder's sequence."""
    blocks: torch.Tensor
    """[max_blocks] int32."""
    causal: bool
    custom_mask: torch.Tensor | None
    """[query_len, seq_len] bool, True = visible; replaces the causal rule."""
    num_ranks: int
    """Ranks that share the sequence; position p is held by rank p % num_ranks, as its p // num_ranks-th."""
    rank: int


class ReferenceAttention(AttentionBackend):
    """Attention in the plainest form."""

    capabilities = CAPABILITIES

    def __init__(self, setup: AttentionSetup) -> None:
        super().__init__(setup)
        options = setup.options if isinstance(setup.options, ReferenceOptions) else ReferenceOptions()
        self.compute_dtype: torch.dtype = getattr(torch, options.compute_dtype)
        self.query_tile = 1 if setup.batch_invariant else QUERY_TILE

    def build_metadata(self, request: MetadataRequest) -> tuple[RequestRows, ...]:
        """One record per request that has query tokens."""
        common = request.common
        starts, seq_lens = common.query_start_loc.tolist(), common.seq_lens.tolist()
        encoder_seq_lens = seq_lens if common.encoder_seq_lens is None else common.encoder_seq_lens.tolist()
        rows, mask_offset = [], 0
        for index in range(common.num_reqs):
            query_len, seq_len = starts[index + 1] - starts[index], seq_lens[index]
            if query_len == 0:
                continue
            rows.append(
                RequestRows(
                    query_start=starts[index],
                    query_end=starts[index + 1],
                    seq_len=seq_len,
                    encoder_seq_len=encoder_seq_lens[index],
                    blocks=common.block_table[index],
                    causal=_is_causal(common, index),
                    custom_mask=_unpack_mask(common, mask_offset, query_len, seq_len),
                    num_ranks=common.context_parallel_size,
                    rank=common.context_parallel_rank,
                )
            )
            mask_offset += query_len * seq_len
        return tuple(rows)

    def forward(self, call: AttentionCall) -> None:
        call.output.zero_()
        if call.lse is not None:
            call.lse.fill_(-math.inf)
        for rows in call.metadata or ():
            for first in range(rows.query_start, rows.query_end, self.query_tile):
                self._attend(call, rows, slice(first, min(first + self.query_tile, rows.query_end)))

    def _attend(self, call: AttentionCall, rows: RequestRows, tile: slice) -> None:
        first_position = rows.seq_len - rows.query_end
        positions = torch.arange(first_position + tile.start, first_position + tile.stop, device=call.query.device)
        visible = visible_keys(call.layer, rows, positions)
        keys = visible.any(dim=0).nonzero().squeeze(1)
        if keys.numel() == 0:
            return
        k, v = self._gather(call, rows, keys)
        distance = (positions[:, None] - keys[None, :]).abs()
        scores = self._scores(call, call.query[tile], k, distance).masked_fill(~visible[:, keys], -math.inf)
        weights, lse = _softmax(scores, call.sinks if rows.rank == 0 else None)
        call.output[tile] = torch.einsum("hqk,khd->qhd", weights, v).to(call.output.dtype)
        if call.lse is not None:
            call.lse[tile] = lse.transpose(0, 1).to(call.lse.dtype)

    def _gather(self, call: AttentionCall, rows: RequestRows, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [num_keys, num_heads, ...] of the key positions that some row sees; no other slot or block is touched."""
        k, v = self._of_this_step(call, rows, keys) if _is_encoder(call.layer) else self._cached(call, rows, keys)
        group_size = call.layer.num_heads // call.layer.num_kv_heads
        return k.repeat_interleave(group_size, dim=1), v.repeat_interleave(group_size, dim=1)

    def _of_this_step(self, call: AttentionCall, rows: RequestRows, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert call.key is not None  # encoders bring them
        assert call.value is not None
        tokens = rows.query_start + keys
        return call.key[tokens].to(self.compute_dtype), call.value[tokens].to(self.compute_dtype)

    def _cached(self, call: AttentionCall, rows: RequestRows, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        held = keys // rows.num_ranks
        blocks, offsets = rows.blocks[held // self.setup.block_size].long(), held % self.setup.block_size
        if call.layer.is_mla:
            latents = call.kv_cache[blocks, offsets].to(self.compute_dtype)[:, None] * call.k_scale
            return latents, latents[..., : call.layer.value_dim]
        k = call.kv_cache[blocks, 0, offsets].to(self.compute_dtype) * call.k_scale
        return k, call.kv_cache[blocks, 1, offsets].to(self.compute_dtype) * call.v_scale

    def _scores(self, call: AttentionCall, query: torch.Tensor, k: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
        """[num_heads, num_rows, num_keys], unmasked."""
        scores = torch.einsum("qhd,khd->hqk", query.to(self.compute_dtype), k) * call.layer.scale
        cap = call.layer.logits_soft_cap
        if cap:
            scores = cap * torch.tanh(scores / cap)
        if call.alibi_slopes is not None:
            scores = scores - call.alibi_slopes.to(scores)[:, None, None] * distance
        return scores


def visible_keys(layer: AttentionLayer, rows: RequestRows, positions: torch.Tensor) -> torch.Tensor:
    """[num_rows, num_keys] bool: may the row at `positions[i]` see key position j?

    A row that is not causal, or has a custom mask, sees to both sides; window and chunk then limit both sides alike. Cross attention sees
    the whole other sequence. Of what is visible, a rank of several reads the positions it holds.
    """
    if layer.attention_type == CROSS:
        return torch.ones(positions.numel(), rows.encoder_seq_len, dtype=torch.bool, device=positions.device)
    keys = torch.arange(rows.seq_len, device=positions.device)[None, :]
    queries = positions[:, None]
    if rows.custom_mask is not None:
        first_row = rows.seq_len - rows.custom_mask.shape[0]
        visible = rows.custom_mask[positions - first_row].clone()
    elif rows.causal and layer.causal:
        visible = keys <= queries
    else:
        visible = torch.ones(positions.numel(), rows.seq_len, dtype=torch.bool, device=positions.device)
    if layer.sliding_window is not None:
        visible &= (queries - keys).abs() < layer.sliding_window
    if layer.chunk_len is not None:
        visible &= queries // layer.chunk_len == keys // layer.chunk_len
    return visible & (keys % rows.num_ranks == rows.rank)


def _is_encoder(layer: AttentionLayer) -> bool:
    return layer.attention_type in (ENCODER, ENCODER_ONLY)


def _softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and log-sum-exp over the last dimension of [num_heads, num_rows, num_keys].

    A sink joins the denominator once, so the LSE counts it. A row without a visible key has weights 0 and LSE -inf, sink or not.
    """
    sees_nothing = torch.isneginf(scores).all(dim=-1)
    peak = scores.amax(dim=-1).masked_fill(sees_nothing, 0.0)
    sink = torch.full_like(peak, -math.inf) if sinks is None else sinks.to(peak)[:, None].expand_as(peak)
    peak = torch.maximum(peak, sink)
    exponentials = torch.exp(scores - peak[..., None])
    total = exponentials.sum(dim=-1) + torch.exp(sink - peak)
    lse = (peak + torch.log(total)).masked_fill(sees_nothing, -math.inf)
    return exponentials / total.masked_fill(sees_nothing, 1.0)[..., None], lse


def _is_causal(common: CommonAttentionMetadata, index: int) -> bool:
    return common.causal if isinstance(common.causal, bool) else bool(common.causal[index])


def _unpack_mask(common: CommonAttentionMetadata, offset: int, query_len: int, seq_len: int) -> torch.Tensor | None:
    if common.custom_mask is None:
        return None
    return common.custom_mask.flatten()[offset : offset + query_len * seq_len].view(query_len, seq_len)
