"""The standard KV layouts: their shapes, their allocation, writing into them, and agreeing on one.

Every cache is seen through its logical shape [num_blocks, 2, block_size, num_kv_heads, head_dim] (index 0 = K, 1 = V); `nhd` and `hnd`
differ in strides alone, so code that indexes logically serves both. MLA layers have `latent` caches [num_blocks, block_size, head_dim].

What this file does not know: which blocks belong to whom, attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from slotwise.errors import ResolutionError
from slotwise.interfaces.attention import HND, LATENT, NHD, STANDARD_KV_LAYOUTS, KVCacheLayout, KVLayoutRequest, KVWrite

_STRIDE_ORDERS = {NHD: (0, 1, 2, 3, 4), HND: (0, 1, 3, 2, 4), LATENT: (0, 1, 2)}


def standard_layout(request: KVLayoutRequest) -> KVCacheLayout:
    """Layout of one layer's cache under a standard name.

    Raises ResolutionError for any other name: a backend that offers a private layout overrides `kv_cache_layout`.
    """
    if request.name not in _STRIDE_ORDERS:
        raise ResolutionError(
            f"KV layout {request.name!r} is not a standard one; standard are {', '.join(STANDARD_KV_LAYOUTS)}. "
            "The backend that offers it must override kv_cache_layout."
        )
    is_latent = request.name == LATENT
    inner = (request.block_size, request.head_dim) if is_latent else (2, request.block_size, request.num_kv_heads, request.head_dim)
    return KVCacheLayout(
        name=request.name,
        shape=(request.num_blocks, *inner),
        stride_order=_STRIDE_ORDERS[request.name],
        dtype=request.dtype,
    )


def allocate(layout: KVCacheLayout, device: str | torch.device) -> torch.Tensor:
    """A zeroed cache: a view of shape `layout.shape` whose memory order is `layout.stride_order`.

    On the CPU the system hands out its pages when they are first written, so that a large pool costs nothing until it is used.
    """
    dtype = getattr(torch, layout.dtype)
    memory_shape = [layout.shape[dimension] for dimension in layout.stride_order]
    if torch.device(device).type == "cpu":
        num_bytes = math.prod(memory_shape) * dtype.itemsize
        memory = torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(memory_shape)
    else:
        memory = torch.zeros(memory_shape, dtype=dtype, device=device)
    inverse = [layout.stride_order.index(dimension) for dimension in range(len(layout.shape))]
    return memory.permute(inverse)


def write_standard_kv(write: KVWrite) -> None:
    """Put K and V of each token into its slot, in place, as `KVWrite` says; slots of -1 are not written. Two tokens never share a slot."""
    slots, kept = write.slot_mapping, None
    is_padding = slots < 0
    if bool(is_padding.any()):
        kept = (~is_padding).nonzero().squeeze(1)
        slots = slots[kept]
    cache = write.kv_cache
    block_size = cache.shape[1 if write.layer.is_mla else 2]
    where = (torch.div(slots, block_size, rounding_mode="floor"), slots % block_size)
    if write.layer.is_mla:
        _put(cache, where, write.key.squeeze(1), kept, write.k_scale)
        return
    assert write.value is not None  # only MLA layers have none
    _put(cache[:, 0], where, write.key, kept, write.k_scale)
    _put(cache[:, 1], where, write.value, kept, write.v_scale)


def _put(
    cache: torch.Tensor, where: tuple[torch.Tensor, torch.Tensor], rows: torch.Tensor, kept: torch.Tensor | None, scale: float
) -> None:
    cache.index_put_(where, stored(rows if kept is None else rows[kept], scale, cache.dtype))


def stored(tensor: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """`tensor / scale` in the cache's dtype: rounded to nearest even and clamped where the dtype is a quantised one."""
    if scale != 1.0:
        tensor = tensor.float() / scale
    if dtype == torch.int8:
        return tensor.float().round().clamp(-127, 127).to(dtype)
    if dtype.itemsize == 1:
        largest = torch.finfo(dtype).max
        return tensor.float().clamp(-largest, largest).to(dtype)
    return tensor.to(dtype)


def negotiate_layout(accepted: Iterable[Sequence[str]]) -> str | None:
    """The layout every backend accepts, best by the first backend's order; None if there is none.

    accepted: `AttentionCapabilities.kv_layouts` of each backend that shares the KV group.
    """
    lists = [tuple(layouts) for layouts in accepted]
    if not lists:
        return None
    return next((name for name in lists[0] if all(name in layouts for layouts in lists[1:])), None)
