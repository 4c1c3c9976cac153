"""The standard KV layouts: their shapes, their allocation, writing into them, and agreeing on one.

Every cache is seen through its logical shape [num_blocks, 2, block_size, num_kv_heads, head_dim] (index 0 = K, 1 = V); `nhd` and `hnd`
differ in strides alone, so code that indexes logically serves both.

What this file does not know: which blocks belong to whom, quantised storage formats, attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from slotwise.errors import ResolutionError
from slotwise.interfaces.attention import HND, NHD, STANDARD_KV_LAYOUTS, KVCacheLayout, KVLayoutRequest, KVWrite

_STRIDE_ORDERS = {NHD: (0, 1, 2, 3, 4), HND: (0, 1, 3, 2, 4)}


def standard_layout(request: KVLayoutRequest) -> KVCacheLayout:
    """Layout of one layer's cache under a standard name.

    Raises ResolutionError for any other name: a backend that offers a private layout overrides `kv_cache_layout`.
    """
    if request.name not in _STRIDE_ORDERS:
        raise ResolutionError(
            f"KV layout {request.name!r} is not a standard one; standard are {', '.join(STANDARD_KV_LAYOUTS)}. "
            "The backend that offers it must override kv_cache_layout."
        )
    return KVCacheLayout(
        name=request.name,
        shape=(request.num_blocks, 2, request.block_size, request.num_kv_heads, request.head_dim),
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
    """Put K and V of each token into its slot, in place; slots of -1 are not written.

    Values are divided by `k_scale` and `v_scale` and cast to the cache's dtype. Two tokens never share a slot.
    """
    slots, key, value = write.slot_mapping, write.key, write.value
    is_padding = slots < 0
    if bool(is_padding.any()):
        kept = (~is_padding).nonzero().squeeze(1)
        slots, key, value = slots[kept], key[kept], value[kept]
    block_size = write.kv_cache.shape[2]
    blocks, offsets = torch.div(slots, block_size, rounding_mode="floor"), slots % block_size
    write.kv_cache[:, 0].index_put_((blocks, offsets), _stored(key, write.k_scale, write.kv_cache.dtype))
    write.kv_cache[:, 1].index_put_((blocks, offsets), _stored(value, write.v_scale, write.kv_cache.dtype))


def _stored(tensor: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    return (tensor if scale == 1.0 else tensor / scale).to(dtype)


def negotiate_layout(accepted: Iterable[Sequence[str]]) -> str | None:
    """The layout every backend accepts, best by the first backend's order; None if there is none.

    accepted: `AttentionCapabilities.kv_layouts` of each backend that shares the KV group.
    """
    lists = [tuple(layouts) for layouts in accepted]
    if not lists:
        return None
    return next((name for name in lists[0] if all(name in layouts for layouts in lists[1:])), None)
