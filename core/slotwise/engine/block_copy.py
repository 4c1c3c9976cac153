"""Copies KV between blocks, for managers whose hits end inside a block.

What this file does not know: why a block is copied, who holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from slotwise.engine.attention_dispatch import BoundLayer
from slotwise.interfaces.kv_cache import BlockCopy


def copy_blocks(layers: Iterable[BoundLayer], copies: Sequence[BlockCopy]) -> None:
    """Carry out all copies of a step, in every layer of their groups: one gather and one scatter per cache.

    All sources are read before the first target is written, since a block may be both, and groups share memory. Caches have a standard
    layout: logical shape [num_blocks, 2, block_size, num_kv_heads, head_dim], or [num_blocks, block_size, head_dim] for MLA.
    """
    layers = tuple(layers)
    by_group: dict[int, list[BlockCopy]] = {}
    for copy in copies:
        by_group.setdefault(copy.group, []).append(copy)
    read = []
    for group, members in by_group.items():
        caches = _caches_of(layers, group)
        sources, targets, offsets = _indices(members, caches[0].device)
        read += [(cache, targets, offsets, cache[_places(cache, sources, offsets)]) for cache in caches]
    for cache, targets, offsets, values in read:
        cache[_places(cache, targets, offsets)] = values


def _places(cache: torch.Tensor, blocks: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor | slice, ...]:
    return (blocks, offsets) if cache.dim() == 3 else (blocks, slice(None), offsets)


def _caches_of(layers: Iterable[BoundLayer], group: int) -> list[torch.Tensor]:
    """Each cache once, though layers that share KV name it several times."""
    caches = {layer.kv_cache.data_ptr(): layer.kv_cache for layer in layers if layer.group == group}
    return list(caches.values())


def _indices(copies: Sequence[BlockCopy], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Source block, target block and offset of every token to copy: [num_tokens] int64 each."""
    tokens = [(copy.source_block, copy.target_block, offset) for copy in copies for offset in range(copy.num_tokens)]
    sources, targets, offsets = torch.tensor(tokens, device=device).T
    return sources, targets, offsets
