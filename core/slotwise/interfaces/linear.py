"""The `linear` slot: how a weight matrix is stored, and how rows of activations are multiplied with it.

A model hands over each matrix once, when its weights are loaded, and keeps what it gets back. Sums are float32 or better; results are
float32, whatever the storage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRows:
    """Rows of a matrix as a file stores them, for components that need not make them dense first."""

    scheme: str
    """How a row is stored: a name of the ggml project's types (`"F32"`, `"BF16"`, `"Q8_0"`, `"Q4_K"`, ...)."""
    data: torch.Tensor
    """[num_rows, bytes per row] uint8 on the CPU, the bytes of a row side by side; may be a view of a mapped file."""
    num_inputs: int
    """Elements of a row."""

    @property
    def shape(self) -> tuple[int, int]:
        """(num_rows, num_inputs)."""
        return self.data.shape[0], self.num_inputs


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearCapabilities:
    """What a linear component claims."""

    devices: tuple[str, ...] = ("cpu",)
    """Torch device types it runs on."""
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    """Dtypes of models it serves."""
    block_schemes: tuple[str, ...] = ()
    """Schemes of `BlockRows` that `pack_blocks` takes."""
    preference: Mapping[str, int] = field(default_factory=dict)
    """Device type -> rank for `use = "auto"`; those that change a model's weights have none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearSetup:
    """What a linear component is made for."""

    dtype: str
    """Dtype the model computes in, torch's name."""
    device: str
    """Torch device of the matrices."""
    options: BaseModel | None = None
    """The component's validated options model, or None if it declares none."""


class PackedMatrix(ABC):
    """One matrix, ready to be multiplied with."""

    in_features: int
    """Columns of the weight."""
    out_features: int
    """Rows of the weight."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Memory it takes."""

    @abstractmethod
    def multiply(self, x: torch.Tensor, out: torch.Tensor | None = None, *, adds: bool = False) -> torch.Tensor:
        """x @ weight.T + bias. x: [num_rows, in_features], float32 or the model's dtype, elements of a row side by side. Returns
        [num_rows, out_features] float32, in `out` if given; adds: to what is in there. A row's result does not depend on the others."""

    @abstractmethod
    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows of the weight as they are multiplied with, for an embedding that is tied to the output head. indices: [num_rows] int64.
        Returns [num_rows, in_features] float32."""


class LinearBackend(ABC):
    """Base of linear components. One instance per engine; its matrices are used by one thread at a time."""

    capabilities = LinearCapabilities()
    """Must equal the `Component` record's capabilities."""

    def __init__(self, setup: LinearSetup) -> None:
        self.setup = setup

    @abstractmethod
    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedMatrix:
        """weight: [out_features, in_features], any float dtype, on the CPU or the device; it is copied. bias: [out_features]. Raises
        ValueError for values that the storage cannot hold (NaN, infinite)."""

    def pack_blocks(self, pieces: Sequence[BlockRows], bias: torch.Tensor | None = None) -> PackedMatrix:
        """`pack` of rows as a file stores them; several pieces are one matrix, row under row. Called only with
        `LinearCapabilities.block_schemes`."""
        raise NotImplementedError(f"{type(self).__name__} claims no block schemes")
