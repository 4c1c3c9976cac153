"""The compiled kernels: their argument records, field by field as in `kernels/attention.h`, and the calls.

What this file does not know: attention; it turns tensors into addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from slotwise.errors import ComponentUnavailableError
from slotwise_backends.cpu_attention.capabilities import LIBRARY, missing_library

ABI_VERSION = 2
ELEMENT_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3, torch.float8_e4m3fn: 4}


class KVView(ctypes.Structure):
    """`struct kv_view`."""

    _fields_ = (
        ("base", ctypes.c_void_p),
        ("block_stride", ctypes.c_int64),
        ("token_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
    )

    @classmethod
    def of(cls, tensor: torch.Tensor) -> KVView:
        """tensor: [num_blocks, num_tokens, num_heads, dim], the last dimension contiguous."""
        assert tensor.stride(3) == 1, "the elements of a head must be contiguous"
        return cls(tensor.data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2))


class AttendStep(ctypes.Structure):
    """`struct attend_step`."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("query_start_loc", "seq_lens", "num_keys", "block_table", "causal_rows", "mask", "mask_start")
        ),
        ("table_stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("num_rows", "is_causal", "num_ranks", "rank", "num_threads")),
    )


class AttendArgs(ctypes.Structure):
    """`struct attend_args`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("step", "query", "output", "lse")),
        ("key", KVView),
        ("value", KVView),
        *((name, ctypes.c_void_p) for name in ("sinks", "alibi_slopes")),
        *((name, ctypes.c_int64) for name in ("query_token_stride", "query_head_stride")),
        *((name, ctypes.c_int32) for name in ("num_heads", "num_kv_heads", "head_dim", "value_dim", "block_size")),
        *((name, ctypes.c_int32) for name in ("query_type", "kv_type", "window", "chunk_len")),
        *((name, ctypes.c_float) for name in ("score_scale", "value_scale", "soft_cap")),
    )


class WriteArgs(ctypes.Structure):
    """`struct write_args`."""

    _fields_ = (
        ("key", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
        ("key_cache", KVView),
        ("value_cache", KVView),
        ("slots", ctypes.c_void_p),
        *(
            (name, ctypes.c_int64)
            for name in ("key_token_stride", "key_head_stride", "value_token_stride", "value_head_stride", "num_tokens")
        ),
        *((name, ctypes.c_int32) for name in ("num_kv_heads", "head_dim", "block_size", "source_type", "kv_type", "num_threads")),
        *((name, ctypes.c_float) for name in ("k_scale", "v_scale")),
    )


def address(tensor: torch.Tensor | None) -> int | None:
    """Of its first element; null for none."""
    return None if tensor is None else tensor.data_ptr()


class Kernels:
    """The loaded library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._attend: Callable[[Any], int] = library.slotwise_attend
        self._write: Callable[[Any], None] = library.slotwise_write
        library.slotwise_write.restype = None
        library.slotwise_variant.restype = ctypes.c_char_p
        self.instruction_set: str = library.slotwise_variant().decode()
        """`avx512`, `avx2` or `baseline`: what this machine runs."""

    def attend(self, args: AttendArgs) -> None:
        """Raises MemoryError."""
        if self._attend(ctypes.byref(args)):
            raise MemoryError("the cpu attention kernels found no memory for their scratch space")

    def write(self, args: WriteArgs) -> None:
        """K and V into their slots."""
        self._write(ctypes.byref(args))


@lru_cache(maxsize=1)
def load_kernels() -> Kernels:
    """Raises ComponentUnavailableError if the library was not built, or was built from other sources."""
    if (missing := missing_library()) is not None:
        raise ComponentUnavailableError(f"cpu attention: {missing[0]} Cure: {missing[1]}")
    library = ctypes.CDLL(str(LIBRARY))
    found = library.slotwise_abi_version()
    if found != ABI_VERSION:
        raise ComponentUnavailableError(
            f"cpu attention: its kernels were built from other sources (interface {found}, wanted {ABI_VERSION}). Install Slotwise again."
        )
    return Kernels(library)
