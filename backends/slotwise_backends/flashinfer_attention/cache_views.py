"""A standard cache as one run of slots, so that a page table can name single keys.

    memory  | K of block 0 | V of block 0 | K of block 1 | ...        key `offset` of `block` has number block * slots_per_block + offset,
            0              block_size     slots_per_block            its value lies the same distance behind it in every block

Under `hnd` slots of one head lie side by side: a block then spans as many slots more as it has heads. Views overlap; they are only read.
What this file does not know: FlashInfer's objects, page tables.
"""

from __future__ import annotations

import torch

from slotwise.interfaces.attention import HND


def slots_per_block(kv_layout: str, block_size: int, num_kv_heads: int) -> int:
    """Numbers from a block's first key to the next block's."""
    return 2 * block_size * (num_kv_heads if kv_layout == HND else 1)


def slot_view(cache: torch.Tensor, *, is_hnd: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of `cache` (logical shape [num_blocks, 2, block_size, num_kv_heads, head_dim]) in pages of one slot:
    [num_slots, 1, num_kv_heads, head_dim], or [num_slots, num_kv_heads, 1, head_dim] if is_hnd."""
    num_blocks, _, block_size, num_heads, head_dim = cache.shape
    block, half, slot, head, element = cache.stride()
    num_slots = (num_blocks - 1) * (block // slot) + block_size
    if is_hnd:
        shape, strides = (num_slots, num_heads, 1, head_dim), (slot, head, slot, element)
    else:
        shape, strides = (num_slots, 1, num_heads, head_dim), (slot, slot, head, element)
    start = cache.storage_offset()
    return cache.as_strided(shape, strides, start), cache.as_strided(shape, strides, start + half)
