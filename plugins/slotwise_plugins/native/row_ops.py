"""What stands between a decoder's matrices, row by row: in C, and the same in torch for other devices and as the kernels' judge.

What this file does not know: models, where the parameters come from.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from slotwise_plugins.native.library import ACTIVATIONS, ELEMENT_TYPES, DenseKernels, GateArgs, NormArgs, RopeArgs


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeTable:
    """[num_positions, half] float32 each: element i of a head is rotated with element i + half. half 0 = no rotation."""

    cos: torch.Tensor
    sin: torch.Tensor

    def to(self, device: str) -> RopeTable:
        return RopeTable(cos=self.cos.to(device), sin=self.sin.to(device))

    @property
    def half(self) -> int:
        return self.cos.shape[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadShape:
    """Heads of a row of queries, keys and values side by side."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    """Of the norms of heads."""


class RowOps(ABC):
    """Inputs are float32 rows; outputs are written where they are wanted, in their dtype."""

    @abstractmethod
    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, *, adds: bool = False) -> None:
        """out (+)= x / sqrt(mean(x^2) + eps) * weight. x, out: [num_rows, size]; weight: [size] float32.
        Source: Zhang and Sennrich, 2019."""

    @abstractmethod
    def rope(
        self,
        qkv: torch.Tensor,
        table: RopeTable,
        positions: torch.Tensor,
        out: torch.Tensor,
        *,
        shape: HeadShape,
        query_norm: torch.Tensor | None = None,
        key_norm: torch.Tensor | None = None,
    ) -> None:
        """Norms of heads, then rotation of the first 2 * half elements of query and key heads by pairs (i, i + half); values are copied.

        qkv, out: [num_rows, (num_heads + 2 num_kv_heads) * head_dim]; positions: [num_rows] int64;
        query_norm, key_norm: [head_dim] float32. Source: Su et al., 2021, "RoFormer".
        """

    @abstractmethod
    def gate(self, x: torch.Tensor, activation: str, out: torch.Tensor) -> None:
        """out = activation(first half) * second half. x: [num_rows, 2 size] float32; out: [num_rows, size]. activation: a key of
        `ACTIVATIONS`."""


class NativeRowOps(RowOps):
    """By the dense kernels. The argument records are filled in anew with each call."""

    def __init__(self, kernels: DenseKernels) -> None:
        self._kernels = kernels
        self._norm, self._rope, self._gate = NormArgs(), RopeArgs(), GateArgs()

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, *, adds: bool = False) -> None:
        assert not adds or out.dtype is torch.float32
        args = self._norm
        args.x, args.x_stride, args.x_type = x.data_ptr(), x.stride(0), ELEMENT_TYPES[x.dtype]
        args.out, args.out_stride, args.out_type = out.data_ptr(), out.stride(0), ELEMENT_TYPES[out.dtype]
        args.weight, args.eps, args.adds = weight.data_ptr(), eps, adds
        args.num_rows, args.size = x.shape
        args.num_threads = torch.get_num_threads()
        self._kernels.norm(ctypes.byref(args))

    def rope(
        self,
        qkv: torch.Tensor,
        table: RopeTable,
        positions: torch.Tensor,
        out: torch.Tensor,
        *,
        shape: HeadShape,
        query_norm: torch.Tensor | None = None,
        key_norm: torch.Tensor | None = None,
    ) -> None:
        args = self._rope
        args.qkv, args.qkv_stride, args.num_rows = qkv.data_ptr(), qkv.stride(0), len(qkv)
        args.out, args.out_stride, args.out_type = out.data_ptr(), out.stride(0), ELEMENT_TYPES[out.dtype]
        args.cos, args.sin, args.half = table.cos.data_ptr(), table.sin.data_ptr(), table.half
        args.positions = positions.data_ptr()
        args.query_norm = None if query_norm is None else query_norm.data_ptr()
        args.key_norm = None if key_norm is None else key_norm.data_ptr()
        args.num_heads, args.num_kv_heads, args.head_dim, args.eps = shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.eps
        args.num_threads = torch.get_num_threads()
        self._kernels.rope(ctypes.byref(args))

    def gate(self, x: torch.Tensor, activation: str, out: torch.Tensor) -> None:
        args = self._gate
        args.x, args.x_stride = x.data_ptr(), x.stride(0)
        args.out, args.out_stride, args.out_type = out.data_ptr(), out.stride(0), ELEMENT_TYPES[out.dtype]
        args.num_rows, args.size = out.shape
        args.activation, args.num_threads = ACTIVATIONS[activation], torch.get_num_threads()
        self._kernels.gate(ctypes.byref(args))


class TorchRowOps(RowOps):
    """By torch."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, *, adds: bool = False) -> None:
        values = _normed(x.float(), eps) * weight
        if adds:
            out += values
        else:
            out.copy_(values)

    def rope(
        self,
        qkv: torch.Tensor,
        table: RopeTable,
        positions: torch.Tensor,
        out: torch.Tensor,
        *,
        shape: HeadShape,
        query_norm: torch.Tensor | None = None,
        key_norm: torch.Tensor | None = None,
    ) -> None:
        heads = qkv.view(len(qkv), -1, shape.head_dim).clone()
        num_rotated, half = shape.num_heads + shape.num_kv_heads, table.half
        if query_norm is not None:
            heads[:, : shape.num_heads] = _normed(heads[:, : shape.num_heads], shape.eps) * query_norm
        if key_norm is not None:
            heads[:, shape.num_heads : num_rotated] = _normed(heads[:, shape.num_heads : num_rotated], shape.eps) * key_norm
        if half:
            cosines, sines = table.cos[positions].unsqueeze(1), table.sin[positions].unsqueeze(1)
            first, second = heads[:, :num_rotated, :half].clone(), heads[:, :num_rotated, half : 2 * half].clone()
            heads[:, :num_rotated, :half] = first * cosines - second * sines
            heads[:, :num_rotated, half : 2 * half] = second * cosines + first * sines
        out.copy_(heads.view(len(qkv), -1))

    def gate(self, x: torch.Tensor, activation: str, out: torch.Tensor) -> None:
        gate, up = x.chunk(2, dim=1)
        functional = torch.nn.functional
        if activation == "silu":
            out.copy_(functional.silu(gate) * up)
        else:
            out.copy_(functional.gelu(gate, approximate="tanh" if activation == "gelu_pytorch_tanh" else "none") * up)


def _normed(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps)
