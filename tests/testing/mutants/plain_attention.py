"""A correct attention backend, one query token at a time, whose steps the mutants break one by one."""

from __future__ import annotations

import dataclasses
import math

import torch

from slotwise.engine.kv_layout import stored
from slotwise.interfaces.attention import (
    ATTENTION_TYPES,
    CROSS,
    ENCODER,
    ENCODER_ONLY,
    HND,
    LAYER_KINDS,
    NHD,
    AttentionBackend,
    AttentionCapabilities,
    GraphSupport,
)

CLAIMS = AttentionCapabilities(
    dtypes=("float32", "bfloat16"),
    kv_dtypes=("auto", "int8", "float8_e4m3fn"),
    kv_layouts=(NHD, HND),
    layer_kinds=LAYER_KINDS,
    attention_types=ATTENTION_TYPES,
    logits_soft_cap=True,
    alibi=True,
    sinks=True,
    non_causal=True,
    mla=True,
    custom_mask=True,
    lse=True,
    cascade=True,
    context_parallel=True,
    batch_invariant=True,
    graph_support=GraphSupport.ALWAYS,
)


@dataclasses.dataclass
class Step:
    """Metadata: the batch, in tensors of its own where a graph captured it."""

    common: object
    prefix_len: int


class PlainAttention(AttentionBackend):
    """Right."""

    capabilities = CLAIMS
    caught_by = ""

    def __init__(self, setup):
        super().__init__(setup)
        self.captured = {}

    def build_metadata(self, request):
        step = Step(request.common, request.common_prefix_len)
        if not request.for_graph_capture:
            return step
        key = (request.common.num_reqs, request.common.num_tokens)
        if key not in self.captured:
            self.captured[key] = Step(dataclasses.replace(request.common, **self.clones(request.common)), 0)
        for name in self.clones(request.common):
            getattr(self.captured[key].common, name).copy_(getattr(request.common, name))
        return self.captured[key]

    def clones(self, common):
        return {name: getattr(common, name).clone() for name in ("query_start_loc", "seq_lens", "block_table", "slot_mapping")}

    def update_block_table(self, metadata, block_table, slot_mapping):
        return Step(dataclasses.replace(metadata.common, block_table=block_table, slot_mapping=slot_mapping), metadata.prefix_len)

    def forward(self, call):
        call.output.zero_()
        if call.lse is not None:
            call.lse.fill_(-math.inf)
        if call.metadata is None:
            return
        starts, seq_lens = call.metadata.common.query_start_loc.tolist(), self.seq_lens(call.metadata)
        for row, seq_len in enumerate(seq_lens):
            for token in range(starts[row], starts[row + 1]):
                self.attend(call, call.metadata, row, token, self.position(starts, row, token, seq_len))

    def seq_lens(self, step):
        return step.common.seq_lens.tolist()

    def position(self, starts, row, token, seq_len):
        return seq_len - starts[row + 1] + token

    def attend(self, call, step, row, token, position):
        keys = self.visible(call, step, row, position).nonzero().flatten()
        parts = [self.part(call, step, row, token, position, each) for each in self.parts(call, step, keys)]
        output, lse = self.merge(call, step, parts)
        call.output[token] = output.to(call.output.dtype)
        if call.lse is not None:
            call.lse[token] = self.reported_lse(call, lse)

    def visible(self, call, step, row, position):
        """[num_key_positions] bool."""
        layer, common = call.layer, step.common
        if layer.attention_type == CROSS:
            return torch.ones(int(common.encoder_seq_lens[row]), dtype=torch.bool)
        keys = torch.arange(int(common.seq_lens[row]))
        if common.custom_mask is not None:
            visible = self.mask_row(common, row, position).clone()
        elif layer.causal and self.is_causal(common, row):
            visible = keys <= position
        else:
            visible = torch.ones(len(keys), dtype=torch.bool)
        if layer.sliding_window is not None:
            visible &= self.in_window(position, keys, layer.sliding_window)
        if layer.chunk_len is not None:
            visible &= self.in_chunk(position, keys, layer.chunk_len)
        return visible & (keys % common.context_parallel_size == common.context_parallel_rank)

    def is_causal(self, common, row):
        return common.causal if isinstance(common.causal, bool) else bool(common.causal[row])

    def mask_row(self, common, row, position):
        lens, seq_lens = (common.query_start_loc[1:] - common.query_start_loc[:-1]).tolist(), common.seq_lens.tolist()
        start = sum(q * s for q, s in zip(lens[:row], seq_lens[:row], strict=True))
        start += (position - (seq_lens[row] - lens[row])) * seq_lens[row]
        return common.custom_mask[start : start + seq_lens[row]]

    def in_window(self, position, keys, window):
        return (position - keys).abs() < window

    def in_chunk(self, position, keys, length):
        return keys // length == position // length

    def parts(self, call, step, keys):
        return [keys[keys < step.prefix_len], keys[keys >= step.prefix_len]] if step.prefix_len else [keys]

    def part(self, call, step, row, token, position, keys):
        """Output [num_heads, value_dim] and LSE [num_heads] over some keys, no sink counted."""
        layer = call.layer
        if len(keys) == 0:
            return torch.zeros(layer.num_heads, layer.value_dim), torch.full((layer.num_heads,), -math.inf)
        k, v = self.read(call, step, row, keys)
        heads = self.kv_heads(layer)
        scores = self.scores(call, call.query[token].float(), k[:, heads], (keys - position).abs().float())
        lse = torch.logsumexp(scores, dim=1)
        return torch.einsum("hk,khd->hd", torch.exp(scores - lse[:, None]), v[:, heads]), lse

    def kv_heads(self, layer):
        return torch.arange(layer.num_heads) // (layer.num_heads // layer.num_kv_heads)

    def read(self, call, step, row, keys):
        """K and V [num_keys, num_kv_heads, dim] float32."""
        layer = call.layer
        if layer.attention_type in (ENCODER, ENCODER_ONLY):
            tokens = int(step.common.query_start_loc[row]) + keys
            return call.key[tokens].float(), call.value[tokens].float()
        blocks, offsets = self.places(step, row, keys // step.common.context_parallel_size)
        if layer.is_mla:
            latents = call.kv_cache[blocks, offsets].float()[:, None] * call.k_scale
            return latents, latents[..., : layer.value_dim]
        return call.kv_cache[blocks, 0, offsets].float() * call.k_scale, call.kv_cache[blocks, 1, offsets].float() * call.v_scale

    def places(self, step, row, held):
        return step.common.block_table[row, held // self.setup.block_size].long(), held % self.setup.block_size

    def scores(self, call, query, k, distance):
        """[num_heads, num_keys]."""
        scores = torch.einsum("hd,khd->hk", query, k) * call.layer.scale
        if call.layer.logits_soft_cap:
            scores = self.cap(scores, call.layer.logits_soft_cap)
        if call.alibi_slopes is not None:
            scores = scores - call.alibi_slopes[:, None] * distance
        return scores

    def cap(self, scores, cap):
        return cap * torch.tanh(scores / cap)

    def merge(self, call, step, parts):
        """Over all parts, the sink joining once."""
        lses = torch.stack([lse for _, lse in parts])
        seen = ~torch.isneginf(lses).all(dim=0)
        sink = self.sinks(call, step)
        total = torch.logsumexp(lses if sink is None else torch.cat([lses, sink[None]]), dim=0)
        weights = torch.where(seen, torch.exp(lses - torch.where(seen, total, 0.0)), 0.0)
        output = sum(weight[:, None] * output for weight, (output, _) in zip(weights, parts, strict=True))
        return output, torch.where(seen, total, -math.inf)

    def sinks(self, call, step):
        return None if call.sinks is None or step.common.context_parallel_rank else call.sinks

    def reported_lse(self, call, lse):
        return lse

    def write_kv(self, write):
        for token, slot in enumerate(write.slot_mapping.tolist()):
            if slot >= 0:
                self.write_token(write, token, slot // self.setup.block_size, slot % self.setup.block_size)

    def write_token(self, write, token, block, offset):
        cache = write.kv_cache
        if write.layer.is_mla:
            cache[block, offset] = self.stored(write.key[token, 0], write.k_scale, cache.dtype)
            return
        cache[block, 0, offset] = self.stored(write.key[token], write.k_scale, cache.dtype)
        cache[block, 1, offset] = self.stored(write.value[token], write.v_scale, cache.dtype)

    def stored(self, tensor, scale, dtype):
        return stored(tensor, scale, dtype)


class PlainFusedAttention(PlainAttention):
    """Right too, writing K and V itself."""

    capabilities = dataclasses.replace(CLAIMS, fused_kv_write=True, kv_sharing=False, mla=False)

    def forward(self, call):
        if call.metadata is not None and call.key is not None and call.kv_cache.numel():
            self.write_kv(self.write_of(call))
        super().forward(call)

    def write_of(self, call):
        from slotwise.interfaces.attention import KVWrite

        return KVWrite(
            layer=call.layer,
            key=call.key,
            value=call.value,
            kv_cache=call.kv_cache,
            slot_mapping=call.metadata.common.slot_mapping,
            k_scale=call.k_scale,
            v_scale=call.v_scale,
        )
