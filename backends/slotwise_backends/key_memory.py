"""Where keys and values lie: their rows in the cache memory, and copying those rows out of it. Shared by the backends that gather keys.

    nhd:    row = (block * 2 + {0 K, 1 V}) * block_size + offset          of num_kv_heads * head_dim elements
    hnd:    row = ((block * 2 + {0, 1}) * num_kv_heads + head) * block_size + offset        of head_dim elements
    latent: row = block * block_size + offset        of head_dim elements, K and V at once
    layers that cache nothing: row = token of this step        of num_kv_heads * head_dim elements, in `key` and `value`

What this file does not know: who sees which key.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slotwise.interfaces.attention import HND, AttentionCall, AttentionSetup, CommonAttentionMetadata
from slotwise_backends.key_visibility import PlanKey


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyRows:
    """A rectangle of keys [num_requests, num_keys] as rows of memory, [num_requests * num_keys] int64 (hnd: of each head)."""

    num_requests: int
    k: torch.Tensor
    v: torch.Tensor


def key_rows(
    key: PlanKey, common: CommonAttentionMetadata, requests: torch.Tensor, indices: torch.Tensor, *, kv_layout: str, block_size: int
) -> KeyRows:
    """Rows of the keys with these indices in their sequence; no other block is looked up.

    requests: [num_requests] int64. indices: [num_requests, num_keys] int64.
    """
    num_requests = indices.shape[0]
    if key.is_encoder:
        rows = (common.query_start_loc.index_select(0, requests).long()[:, None] + indices).flatten()
        return KeyRows(num_requests=num_requests, k=rows, v=rows)
    blocks = common.block_table.index_select(0, requests).gather(1, indices // block_size).long()
    offsets = indices % block_size
    if key.is_latent:
        rows = (blocks * block_size + offsets).flatten()
        return KeyRows(num_requests=num_requests, k=rows, v=rows)
    if kv_layout == HND:
        heads = torch.arange(key.num_kv_heads, device=indices.device)[None, :, None]
        rows = (blocks[:, None, :] * 2 * key.num_kv_heads + heads) * block_size + offsets[:, None, :]
        v_shift = key.num_kv_heads * block_size
    else:
        rows = blocks * 2 * block_size + offsets
        v_shift = block_size
    rows = rows.flatten()
    return KeyRows(num_requests=num_requests, k=rows, v=rows + v_shift)


class KeyReader:
    """Copies keys and values into scratch memory that the next `read` overwrites."""

    def __init__(self, setup: AttentionSetup) -> None:
        self._is_hnd = setup.kv_layout == HND
        self._scratch: dict[str, torch.Tensor] = {}

    def read(self, call: AttentionCall, key: PlanKey, rows: KeyRows, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [num_requests, num_kv_heads, num_keys, ...] in `dtype`, scaled back."""
        layer, num_requests = call.layer, rows.num_requests
        if key.is_latent:
            memory = call.kv_cache.view(-1, layer.head_dim)
            latents = _scaled(self._select(memory, rows.k, "k").view(num_requests, 1, -1, layer.head_dim), dtype, call.k_scale)
            return latents, latents[..., : layer.value_dim]
        heads_first = self._is_hnd and not key.is_encoder
        shape = (
            (num_requests, layer.num_kv_heads, -1, layer.head_dim)
            if heads_first
            else (num_requests, -1, layer.num_kv_heads, layer.head_dim)
        )
        k_memory, v_memory = self._memories(call, key)
        scales = (1.0, 1.0) if key.is_encoder else (call.k_scale, call.v_scale)
        k, v = self._select(k_memory, rows.k, "k").view(shape), self._select(v_memory, rows.v, "v").view(shape)
        if not heads_first:
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        return _scaled(k, dtype, scales[0]), _scaled(v, dtype, scales[1])

    def _memories(self, call: AttentionCall, key: PlanKey) -> tuple[torch.Tensor, torch.Tensor]:
        """K's and V's, each [num_rows, elements of a row]."""
        if key.is_encoder:
            assert call.key is not None  # encoders bring them
            assert call.value is not None
            return call.key.flatten(1), call.value.flatten(1)
        if self._is_hnd:
            memory = call.kv_cache.permute(0, 1, 3, 2, 4).view(-1, call.layer.head_dim)
        else:
            memory = call.kv_cache.view(-1, call.layer.num_kv_heads * call.layer.head_dim)
        return memory, memory

    def _select(self, memory: torch.Tensor, rows: torch.Tensor, name: str) -> torch.Tensor:
        """index_select into memory kept between calls: fresh pages cost several times the copy itself."""
        size = rows.numel() * memory.shape[1]
        scratch = self._scratch.get(name)
        if scratch is None or scratch.numel() < size or scratch.dtype != memory.dtype:
            with torch.inference_mode(False):
                scratch = self._scratch[name] = torch.empty(size, dtype=memory.dtype, device=memory.device)
        return torch.index_select(memory, 0, rows, out=scratch[:size].view(rows.numel(), memory.shape[1]))


def _scaled(stored: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    widened = stored.to(dtype)
    return widened if scale == 1.0 else widened * scale
