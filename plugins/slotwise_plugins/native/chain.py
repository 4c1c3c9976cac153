"""Chains: what a decoder does to each row from one attention to the next, as data; run by one call into C, or link by link.

Links read named rows and write others. Rows that are *whole* have a place for each row of the step, the others for one block of rows: a
chain runs all its links on a block before it takes the next, so that what lies between two links stays in the cache.

What this file does not know: models, how a matrix is stored.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from slotwise.interfaces.linear import PackedMatrix
from slotwise_plugins.native.library import (
    ACTIVATIONS,
    ELEMENT_TYPES,
    LINK_KINDS,
    ChainArgs,
    DenseKernels,
    GateArgs,
    LinearArgs,
    NormArgs,
    RopeArgs,
    RowRecord,
)
from slotwise_plugins.native.library import Link as LinkRecord
from slotwise_plugins.native.row_ops import HeadShape, RopeTable, RowOps

BLOCK_ROWS = 128
"""Rows per block on the CPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Multiply:
    """target (+)= source @ matrix.T + bias."""

    matrix: PackedMatrix
    source: str
    target: str
    adds: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Normalize:
    """target (+)= `RowOps.norm` of source."""

    weight: torch.Tensor
    eps: float
    source: str
    target: str
    adds: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Rotate:
    """target = `RowOps.rope` of source."""

    table: RopeTable
    shape: HeadShape
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    source: str
    target: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """target = `RowOps.gate` of source."""

    activation: str
    source: str
    target: str


Link = Multiply | Normalize | Rotate | Gate


class NativeMatrix(PackedMatrix):
    """A matrix that the dense kernels multiply with."""

    parameters: LinearArgs
    """Everything about the matrix; rows are filled in with each call."""
    scratch_per_row: int
    """Bytes that a product needs for each row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsLayout:
    """Named rows of a workspace."""

    width: int
    dtype: torch.dtype
    is_whole: bool = False


class Workspace:
    """The memory behind the names. Whole rows are bound to a step's tensors, the others are the workspace's own.

    block_rows None: all rows of a step are one block, in memory of its own for each step, as a device needs it whose graphs are captured.
    """

    def __init__(self, layouts: Mapping[str, RowsLayout], device: str, block_rows: int | None = BLOCK_ROWS) -> None:
        self.block_rows = block_rows
        self.device = device
        self.index = {name: place for place, name in enumerate(layouts)}
        """Name -> place in `records`."""
        self.records = (RowRecord * len(layouts))()
        """What the kernels read."""
        self._layouts = dict(layouts)
        self._bound: dict[str, torch.Tensor] = {}
        self._kept: dict[str, torch.Tensor] = {}
        if block_rows is not None:
            self._bind_blocks(block_rows)

    def bind(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Let a name mean these rows, [num_rows, width], until it is bound anew."""
        layout = self._layouts[name]
        assert rows.shape[1] == layout.width
        assert rows.dtype is layout.dtype
        assert rows.stride(1) == 1
        self._bound[name] = rows
        record = self.records[self.index[name]]
        record.base, record.stride = rows.data_ptr(), rows.stride(0)
        record.type, record.is_whole = ELEMENT_TYPES[rows.dtype], layout.is_whole
        return rows

    def begin_step(self, num_rows: int) -> None:
        """Rows of blocks for a step of so many rows."""
        if self.block_rows is None:
            self._bind_blocks(num_rows)

    def _bind_blocks(self, num_rows: int) -> None:
        for name, layout in self._layouts.items():
            if not layout.is_whole:
                self.bind(name, torch.empty(num_rows, layout.width, dtype=layout.dtype, device=self.device))

    def whole(self, name: str, num_rows: int) -> torch.Tensor:
        """Whole rows, bound; in memory that is kept from step to step if blocks are."""
        kept, layout = self._kept.get(name), self._layouts[name]
        if self.block_rows is None:
            return self.bind(name, torch.empty(num_rows, layout.width, dtype=layout.dtype, device=self.device))
        if kept is None or len(kept) < num_rows:
            kept = self._kept[name] = torch.empty(num_rows, layout.width, dtype=layout.dtype, device=self.device)
        return self.bind(name, kept[:num_rows])

    def width(self, name: str) -> int:
        """Elements of a row."""
        return self._layouts[name].width

    def rows(self, name: str, first: int, count: int) -> torch.Tensor:
        """Rows `first` .. of the step, which for rows of a block are those of the block that begins there."""
        start = first if self._layouts[name].is_whole else 0
        return self._bound[name][start : start + count]


class Chain(ABC):
    """Links in a workspace."""

    def __init__(self, links: Sequence[Link], workspace: Workspace) -> None:
        self.links, self.workspace = tuple(links), workspace

    @abstractmethod
    def run(self, positions: torch.Tensor) -> None:
        """All links on all rows. positions: [num_rows] int64; each whole row that a link names is bound to as many rows."""


class LoopedChain(Chain):
    """Link by link: on any device, with any linear component."""

    def __init__(self, links: Sequence[Link], workspace: Workspace, ops: RowOps) -> None:
        super().__init__(links, workspace)
        self._ops = ops

    def run(self, positions: torch.Tensor) -> None:
        block_rows = self.workspace.block_rows or max(1, len(positions))
        for first in range(0, len(positions), block_rows):
            for link in self.links:
                self._run_link(link, positions[first : first + block_rows], first)

    def _run_link(self, link: Link, positions: torch.Tensor, first: int) -> None:
        source, target = (self.workspace.rows(name, first, len(positions)) for name in (link.source, link.target))
        match link:
            case Multiply():
                link.matrix.multiply(source, target, adds=link.adds)
            case Normalize():
                self._ops.norm(source, link.weight, link.eps, target, adds=link.adds)
            case Rotate():
                self._ops.rope(
                    source, link.table, positions, target, shape=link.shape, query_norm=link.query_norm, key_norm=link.key_norm
                )  # fmt: skip
            case Gate():
                self._ops.gate(source, link.activation, target)


class NativeChain(Chain):
    """One call of the dense kernels. Its links' matrices are native ones."""

    def __init__(self, links: Sequence[Link], workspace: Workspace, kernels: DenseKernels) -> None:
        super().__init__(links, workspace)  # the links own the memory that the records point at
        self._kernels = kernels
        self._parameters = [_parameters(link, workspace) for link in links]
        self._records = (LinkRecord * len(links))()
        for record, link, parameters in zip(self._records, links, self._parameters, strict=True):
            record.kind, record.parameters = LINK_KINDS[type(parameters)], ctypes.addressof(parameters)
            record.source, record.target = workspace.index[link.source], workspace.index[link.target]
            record.adds = isinstance(link, Multiply | Normalize) and link.adds
        per_row = max((link.matrix.scratch_per_row for link in links if isinstance(link, Multiply)), default=0)  # type: ignore[attr-defined]
        assert workspace.block_rows is not None  # of the CPU
        self._scratch_bytes = per_row * workspace.block_rows
        self._args = ChainArgs(
            links=ctypes.addressof(self._records),
            rows=ctypes.addressof(workspace.records),
            num_links=len(links),
            block_size=workspace.block_rows,
        )

    def run(self, positions: torch.Tensor) -> None:
        args = self._args
        args.positions, args.num_rows, args.num_threads = positions.data_ptr(), len(positions), torch.get_num_threads()
        self._kernels.run_chain(args, self._scratch_bytes)


def make_chain(links: Sequence[Link], workspace: Workspace, ops: RowOps, kernels: DenseKernels | None) -> Chain:
    """The fastest way to run the links. kernels: None where they are not there, or not for the workspace's device."""
    if kernels is not None and all(isinstance(link.matrix, NativeMatrix) for link in links if isinstance(link, Multiply)):
        return NativeChain(links, workspace, kernels)
    return LoopedChain(links, workspace, ops)


def _parameters(link: Link, workspace: Workspace) -> LinearArgs | NormArgs | RopeArgs | GateArgs:
    """All but rows, their number, and threads."""
    match link:
        case Multiply():
            assert isinstance(link.matrix, NativeMatrix)
            return link.matrix.parameters
        case Normalize():
            return NormArgs(weight=link.weight.data_ptr(), size=len(link.weight), eps=link.eps)
        case Rotate():
            return RopeArgs(
                cos=link.table.cos.data_ptr(),
                sin=link.table.sin.data_ptr(),
                half=link.table.half,
                query_norm=None if link.query_norm is None else link.query_norm.data_ptr(),
                key_norm=None if link.key_norm is None else link.key_norm.data_ptr(),
                num_heads=link.shape.num_heads,
                num_kv_heads=link.shape.num_kv_heads,
                head_dim=link.shape.head_dim,
                eps=link.shape.eps,
            )
        case Gate():
            return GateArgs(activation=ACTIVATIONS[link.activation], size=workspace.width(link.target))
