"""K and V of a step into their slots, quantised where the cache's dtype is a quantised one.

What this file does not know: layouts; it sees strides.
"""

from __future__ import annotations

import triton
import triton.language as tl

PLAIN: tl.constexpr = tl.constexpr(0)
INT8: tl.constexpr = tl.constexpr(1)
FLOAT8: tl.constexpr = tl.constexpr(2)


@triton.jit
def _nearest_integer(x):
    """Ties to even."""
    nearest = tl.floor(x + 0.5)
    is_tie = nearest - x == 0.5
    is_odd = nearest - 2.0 * tl.floor(nearest * 0.5) != 0.0
    return tl.where(is_tie & is_odd, nearest - 1.0, nearest)


@triton.jit
def _quantised(x, scale, LARGEST: tl.constexpr, STORAGE: tl.constexpr):
    """x / scale as a float32 that the storage dtype holds exactly, so that no cast has to round."""
    x = x.to(tl.float32) / scale
    if STORAGE == INT8:
        x = _nearest_integer(x)
    if STORAGE == FLOAT8:
        # e4m3 keeps 3 of float32's 23 mantissa bits; below 2^-6 its values are multiples of 2^-9.
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & ~0xFFFFF
        x = tl.where(tl.abs(x) < 0.015625, _nearest_integer(x * 512.0) / 512.0, bits.to(tl.float32, bitcast=True))
    return tl.minimum(tl.maximum(x, -LARGEST), LARGEST)


@triton.jit
def write_kernel(
    key,
    value,
    key_cache,
    value_cache,
    slot_mapping,
    k_scale,
    v_scale,
    key_stride_token,
    key_stride_head,
    value_stride_token,
    value_stride_head,
    key_cache_stride_block,
    key_cache_stride_token,
    key_cache_stride_head,
    value_cache_stride_block,
    value_cache_stride_token,
    value_cache_stride_head,
    block_size,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_VALUE: tl.constexpr,
    STORAGE: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """key, value: [num_tokens, num_kv_heads, HEAD_DIM], strided; one program per token and head. A slot of -1 writes nothing."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slot_mapping + token)
    if slot < 0:
        return
    block = slot // block_size
    offset = slot % block_size
    dims = tl.arange(0, BLOCK_D)
    is_dim = dims < HEAD_DIM
    k = tl.load(key + token * key_stride_token + head * key_stride_head + dims, mask=is_dim, other=0.0)
    place = block * key_cache_stride_block + offset * key_cache_stride_token + head * key_cache_stride_head
    if STORAGE != PLAIN:
        k = _quantised(k, k_scale, LARGEST, STORAGE)
    tl.store(key_cache + place + dims, k.to(key_cache.dtype.element_ty), mask=is_dim)
    if HAS_VALUE:
        v = tl.load(value + token * value_stride_token + head * value_stride_head + dims, mask=is_dim, other=0.0)
        place = block * value_cache_stride_block + offset * value_cache_stride_token + head * value_cache_stride_head
        if STORAGE != PLAIN:
            v = _quantised(v, v_scale, LARGEST, STORAGE)
        tl.store(value_cache + place + dims, v.to(value_cache.dtype.element_ty), mask=is_dim)
