"""Scales of a quantised KV cache: one for K and one for V of each layer, found once before the first request.

The model runs over one fixed pseudo-random prompt; the largest |K| and |V| that a layer makes there, with some head room, shall be the
storage dtype's largest value. What is larger later is clamped. The scales depend on the model alone, never on who asks first.

What this file does not know: backends, caches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from slotwise.interfaces.attention import AttentionLayer
from slotwise.interfaces.model import ForwardBatch, Model

QUANTISED_DTYPES: Final = ("float8_e4m3fn", "float8_e5m2", "int8")
HEAD_ROOM: Final = 1.25
PROMPT_LEN: Final = 256
_SEED: Final = 20


@dataclass(frozen=True, slots=True)
class KVScales:
    """Stored K times `k` is K; stored V times `v` is V."""

    k: float = 1.0
    v: float = 1.0


NO_SCALES: Final = KVScales()
"""Of a cache in a dtype of its own."""


def find_kv_scales(model: Model, *, kv_dtype: str, device: str, max_model_len: int) -> dict[str, KVScales]:
    """Layer name -> scales; empty for a dtype that needs none. Costs one forward over `PROMPT_LEN` tokens."""
    if kv_dtype not in QUANTISED_DTYPES:
        return {}
    watch = _WatchingAttention(model.attention_layers)
    num_tokens = min(PROMPT_LEN, max_model_len)
    token_ids = torch.randint(model.vocab_size, (num_tokens,), generator=torch.Generator().manual_seed(_SEED))
    with torch.inference_mode():
        model.forward(
            ForwardBatch(
                input_ids=token_ids.to(device),
                positions=torch.arange(num_tokens, device=device),
                logits_indices=torch.tensor([num_tokens - 1], device=device),
                attention=watch,
            )
        )
    dtype = getattr(torch, kv_dtype)
    largest = torch.finfo(dtype).max if dtype.is_floating_point else 127
    return {
        layer.name: KVScales(*(HEAD_ROOM * peak / largest or 1.0 for peak in watch.peaks[layer.kv_sharing_target or layer.name]))
        for layer in model.attention_layers
    }


class _WatchingAttention:
    """An `AttentionContext` over one prompt and no cache: causal attention in float32 that notes the largest |K| and |V|."""

    def __init__(self, layers: Sequence[AttentionLayer]) -> None:
        self.layers = tuple(layers)
        self.peaks: dict[str, tuple[float, float]] = {}
        self._kv: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def attend(
        self,
        layer_index: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        *,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        layer = self.layers[layer_index]
        if key is None:
            k, v = self._kv[layer.kv_sharing_target or layer.name]
        else:
            k = key.float()
            v = k[..., : layer.value_dim] if value is None else value.float()
            self._kv[layer.name] = k, v
            self.peaks[layer.name] = float(k.abs().max()), float(v.abs().max())
        scores = _scores(layer, query.float(), k, alibi_slopes)
        if sinks is not None:
            scores = torch.cat([scores, sinks.float()[:, None, None].expand(-1, scores.shape[1], 1)], dim=2)
        weights = torch.softmax(scores, dim=2)[..., : k.shape[0]]
        return torch.einsum("hqk,khd->qhd", weights, _per_query_head(layer, v)).to(query.dtype).contiguous()


def _scores(layer: AttentionLayer, query: torch.Tensor, key: torch.Tensor, alibi_slopes: torch.Tensor | None) -> torch.Tensor:
    """[num_heads, num_tokens, num_tokens], -inf where hidden."""
    scores = torch.einsum("qhd,khd->hqk", query, _per_query_head(layer, key)) * layer.scale
    if layer.logits_soft_cap:
        scores = layer.logits_soft_cap * torch.tanh(scores / layer.logits_soft_cap)
    positions = torch.arange(key.shape[0], device=key.device)
    distance = positions[:, None] - positions[None, :]
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.float()[:, None, None] * distance.abs()
    hidden = distance < 0
    if layer.sliding_window is not None:
        hidden |= distance >= layer.sliding_window
    if layer.chunk_len is not None:
        hidden |= positions[:, None] // layer.chunk_len != positions[None, :] // layer.chunk_len
    return scores.masked_fill(hidden, -math.inf)


def _per_query_head(layer: AttentionLayer, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.repeat_interleave(layer.num_heads // layer.num_kv_heads, dim=1)
