"""Matrices in the layout that the dense kernels read: panels of 16 output features. See `native/kernels/dense.h`.

What this file does not know: how they are multiplied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slotwise.interfaces.linear import BlockRows
from slotwise_plugins.linear.capabilities import BLOCK_SCHEMES
from slotwise_plugins.native.library import GROUP, KIND_BF16, KIND_F32, KIND_U4, KIND_U8, PANEL, DenseKernels, PackArgs, UnpackArgs

ZERO_U8 = 128
"""Code of 0 in 8 bits without offsets."""
_SOURCES = {scheme: place for place, scheme in enumerate(BLOCK_SCHEMES)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """How weights are kept."""

    kind: int
    has_offsets: bool = False
    """A weight is scale * code + offset; without, in 8 bits, scale * (code - 128)."""
    keeps_codes: bool = False
    """Codes of a file are taken over where they fit, instead of being taken anew from the numbers they mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panels:
    """A packed weight."""

    kind: int
    shape: tuple[int, int]
    """(out_features, in_features)."""
    codes: torch.Tensor
    """uint8, see `dense.h`."""
    scales: torch.Tensor | None
    """[num_panels, in_features / 32, 16] float16."""
    offsets: torch.Tensor | None
    """Like `scales`."""

    @property
    def zero(self) -> int:
        """The code that means 0, where there are no offsets."""
        return ZERO_U8 if self.kind == KIND_U8 and self.offsets is None else 0

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.codes, self.scales, self.offsets) if tensor is not None)


def dense_storage(dtype: str) -> Storage:
    """float32 or bfloat16 as they are."""
    return Storage(kind=KIND_F32 if dtype == "float32" else KIND_BF16)


INT8 = Storage(kind=KIND_U8)
"""In groups of 32 inputs: weight = scale * (code - 128), scale = largest / 127 in float16, codes to the nearest."""
INT4 = Storage(kind=KIND_U4, has_offsets=True)
"""In groups of 32 inputs: weight = scale * code + offset, offset = smallest, scale = (largest - smallest) / 15, both in float16."""


def stored_storage(pieces: Sequence[BlockRows], dtype: str) -> Storage:
    """As the pieces have it. Where they differ, or have a kind that is not ours, in 8 bits."""
    schemes = {piece.scheme for piece in pieces}
    if schemes <= {"F32", "BF16", "F16"}:
        return dense_storage(dtype)
    if schemes <= {"Q4_0", "Q4_1", "Q4_K"}:
        return Storage(kind=KIND_U4, has_offsets=True, keeps_codes=True)
    return Storage(kind=KIND_U8, has_offsets=not schemes <= {"Q8_0", "Q6_K"}, keeps_codes=True)


def pack(pieces: Sequence[BlockRows], storage: Storage, kernels: DenseKernels) -> Panels:
    """pieces: row under row. Raises ValueError for numbers that cannot be quantised."""
    num_outputs, num_inputs = sum(piece.shape[0] for piece in pieces), pieces[0].num_inputs
    num_panels, is_quantised = -(-num_outputs // PANEL), storage.kind in (KIND_U8, KIND_U4)
    bits = {KIND_F32: 32, KIND_BF16: 16, KIND_U8: 8, KIND_U4: 4}[storage.kind]
    unit = GROUP if is_quantised else 2 if storage.kind == KIND_BF16 else 1
    padded = -(-num_inputs // unit) * unit
    codes = torch.zeros(num_panels * PANEL * padded * bits // 8, dtype=torch.uint8)
    scales, offsets = (
        torch.zeros(num_panels, padded // GROUP, PANEL, dtype=torch.float16) if wanted else None
        for wanted in (is_quantised, is_quantised and storage.has_offsets)
    )
    addresses = torch.cat([piece.data.data_ptr() + torch.arange(piece.shape[0]) * piece.data.stride(0) for piece in pieces])
    sources = torch.cat([torch.full((piece.shape[0],), _SOURCES[piece.scheme], dtype=torch.int32) for piece in pieces])
    not_finite = torch.zeros(1, dtype=torch.int32)
    args = PackArgs(
        rows=addresses.data_ptr(),
        sources=sources.data_ptr(),
        codes=codes.data_ptr(),
        scales=None if scales is None else scales.data_ptr(),
        offsets=None if offsets is None else offsets.data_ptr(),
        not_finite=not_finite.data_ptr(),
        num_outputs=num_outputs,
        num_inputs=num_inputs,
        kind=storage.kind,
        keeps_codes=storage.keeps_codes,
        num_threads=torch.get_num_threads(),
    )
    kernels.pack(ctypes.byref(args))
    if is_quantised and not_finite.item():
        raise ValueError("a weight is NaN or infinite, which cannot be quantised; use the linear component dense")
    return Panels(kind=storage.kind, shape=(num_outputs, num_inputs), codes=codes, scales=scales, offsets=offsets)


def unpack_rows(panels: Panels, indices: torch.Tensor, kernels: DenseKernels) -> torch.Tensor:
    """Rows of the weight as float32, [len(indices), num_inputs]. indices: int64. Raises IndexError."""
    num_outputs, num_inputs = panels.shape
    wanted = indices.contiguous()
    if len(wanted) and not 0 <= int(wanted.min()) <= int(wanted.max()) < num_outputs:
        raise IndexError(f"rows {int(wanted.min())} to {int(wanted.max())} were asked for; the matrix has {num_outputs}")
    out = torch.empty(len(wanted), num_inputs)
    args = UnpackArgs(
        codes=panels.codes.data_ptr(),
        scales=None if panels.scales is None else panels.scales.data_ptr(),
        offsets=None if panels.offsets is None else panels.offsets.data_ptr(),
        indices=wanted.data_ptr(),
        out=out.data_ptr(),
        num_rows=len(wanted),
        num_inputs=num_inputs,
        kind=panels.kind,
        num_threads=torch.get_num_threads(),
        zero=panels.zero,
    )
    kernels.unpack(ctypes.byref(args))
    return out
