"""The compiled dense kernels: their argument records, field by field as in `kernels/dense.h`, and the calls.

What this file does not know: models; it turns records into calls.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch

from slotwise.errors import ComponentUnavailableError
from slotwise_backends.cpu_attention import capabilities as attention
from slotwise_plugins.native.availability import LIBRARY, missing_library

ABI_VERSION = 3
PANEL = 16
"""Output features side by side in memory."""
GROUP = 32
"""Inputs that share a scale in the quantised kinds."""
KIND_F32, KIND_BF16, KIND_U8, KIND_U4 = range(4)
ELEMENT_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
ACTIVATIONS = {"silu": 0, "gelu_pytorch_tanh": 1, "gelu": 2}


class LinearArgs(ctypes.Structure):
    """`struct linear_args`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "weights", "scales", "offsets", "bias", "y", "scratch")),
        *((name, ctypes.c_int64) for name in ("x_stride", "y_stride")),
        *((name, ctypes.c_int32) for name in ("num_rows", "num_outputs", "num_inputs")),
        *((name, ctypes.c_int32) for name in ("kind", "x_type", "y_type", "adds", "num_threads")),
        ("zero", ctypes.c_float),
    )


class NormArgs(ctypes.Structure):
    """`struct norm_args`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "weight", "out")),
        *((name, ctypes.c_int64) for name in ("x_stride", "out_stride")),
        *((name, ctypes.c_int32) for name in ("num_rows", "size", "x_type", "out_type", "adds", "num_threads")),
        ("eps", ctypes.c_float),
    )


class RopeArgs(ctypes.Structure):
    """`struct rope_args`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("qkv", "cos", "sin", "query_norm", "key_norm", "positions", "out")),
        *((name, ctypes.c_int64) for name in ("qkv_stride", "out_stride")),
        *((name, ctypes.c_int32) for name in ("num_rows", "num_heads", "num_kv_heads", "head_dim", "half", "out_type", "num_threads")),
        ("eps", ctypes.c_float),
    )


class GateArgs(ctypes.Structure):
    """`struct gate_args`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "out")),
        *((name, ctypes.c_int64) for name in ("x_stride", "out_stride")),
        *((name, ctypes.c_int32) for name in ("num_rows", "size", "out_type", "activation", "num_threads")),
    )


class PackArgs(ctypes.Structure):
    """`struct pack_args`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("rows", "sources", "codes", "scales", "offsets", "not_finite")),
        *((name, ctypes.c_int64) for name in ("num_outputs", "num_inputs")),
        *((name, ctypes.c_int32) for name in ("kind", "keeps_codes", "num_threads")),
    )


class UnpackArgs(ctypes.Structure):
    """`struct unpack_args`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("codes", "scales", "offsets", "indices", "out")),
        *((name, ctypes.c_int64) for name in ("num_rows", "num_inputs")),
        *((name, ctypes.c_int32) for name in ("kind", "num_threads")),
        ("zero", ctypes.c_float),
    )


class RowRecord(ctypes.Structure):
    """`struct rows`."""

    _fields_ = (("base", ctypes.c_void_p), ("stride", ctypes.c_int64), ("type", ctypes.c_int32), ("is_whole", ctypes.c_int32))


class Link(ctypes.Structure):
    """`struct link`."""

    _fields_ = (*((name, ctypes.c_int32) for name in ("kind", "source", "target", "adds")), ("parameters", ctypes.c_void_p))


class ChainArgs(ctypes.Structure):
    """`struct chain_args`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("links", "rows", "positions", "scratch")),
        *((name, ctypes.c_int64) for name in ("num_links", "num_rows", "block_size")),
        ("num_threads", ctypes.c_int32),
    )


LINK_KINDS = {LinearArgs: 0, NormArgs: 1, RopeArgs: 2, GateArgs: 3}


class DenseKernels:
    """The loaded library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.slotwise_linear_scratch.restype = ctypes.c_int64
        library.slotwise_dense_current.restype = library.slotwise_dense_variant.restype = ctypes.c_char_p
        for name in ("linear", "norm", "rope", "gate", "chain", "pack", "unpack"):
            getattr(library, f"slotwise_{name}").restype = None
        self._library: Any = library
        self.linear, self.norm = library.slotwise_linear, library.slotwise_norm
        self.rope, self.gate = library.slotwise_rope, library.slotwise_gate
        self.pack, self.unpack = library.slotwise_pack, library.slotwise_unpack
        self._chain = library.slotwise_chain
        self._scratch = torch.empty(0, dtype=torch.uint8)

    @property
    def instruction_set(self) -> str:
        """What runs: `avx512dot`, `avx512`, `avx2` or `baseline`."""
        name: bytes = self._library.slotwise_dense_current()
        return name.decode()

    def instruction_sets(self) -> list[tuple[int, str]]:
        """(index, name) of those this machine can run, the best first."""
        names = [(index, self._library.slotwise_dense_variant(index)) for index in range(self._library.slotwise_dense_num_variants())]
        return [(index, name.decode()) for index, name in names if name]

    def choose(self, index: int) -> None:
        """Run another instruction set from now on, in the whole process; for tests."""
        self._library.slotwise_dense_choose(index)

    def scratch_bytes(self, args: LinearArgs) -> int:
        """What a product needs; the same for each row."""
        found: int = self._library.slotwise_linear_scratch(ctypes.byref(args))
        return found

    def multiply(self, args: LinearArgs, num_bytes: int) -> None:
        """`linear`, with scratch memory of its own. num_bytes: by `scratch_bytes`."""
        args.scratch = self._scratch_of(num_bytes)
        self.linear(ctypes.byref(args))

    def run_chain(self, args: ChainArgs, num_bytes: int) -> None:
        """`chain`, with scratch memory of its own for the products of a block of rows."""
        args.scratch = self._scratch_of(num_bytes)
        self._chain(ctypes.byref(args))

    def _scratch_of(self, num_bytes: int) -> int:
        if self._scratch.numel() < num_bytes:
            self._scratch = torch.empty(num_bytes, dtype=torch.uint8)
        return self._scratch.data_ptr()


@lru_cache(maxsize=1)
def load_library() -> ctypes.CDLL:
    """Raises ComponentUnavailableError if the library was not built, or was built from other sources."""
    if (missing := missing_library()) is not None:
        raise ComponentUnavailableError(f"{missing[0]} Cure: {missing[1]}")
    library = ctypes.CDLL(str(LIBRARY))
    if attention.LIBRARY.exists():  # one pool of threads for both
        shared = ctypes.CDLL(str(attention.LIBRARY))
        shared.slotwise_runner.restype = ctypes.c_void_p
        library.slotwise_use_runner(ctypes.c_void_p(shared.slotwise_runner()))
    found = library.slotwise_dense_abi_version()
    if found != ABI_VERSION:
        raise ComponentUnavailableError(
            f"the C kernels of dense layers are of other sources (interface {found}, wanted {ABI_VERSION}). Install Slotwise again."
        )
    return library
