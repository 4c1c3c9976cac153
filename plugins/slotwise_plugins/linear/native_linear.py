"""Linear components on the CPU: weights as they are, or in 8 or 4 bits, multiplied by the dense kernels.

What this file does not know: how panels are laid out, how the kernels work.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch

from slotwise.interfaces.linear import BlockRows, LinearBackend, LinearSetup, PackedMatrix
from slotwise_plugins.linear import capabilities
from slotwise_plugins.linear.panels import INT4, INT8, Panels, Storage, dense_storage, pack, stored_storage, unpack_rows
from slotwise_plugins.native.chain import NativeMatrix
from slotwise_plugins.native.library import ELEMENT_TYPES, DenseKernels, LinearArgs, load_library
from slotwise_plugins.weights.blocks import as_blocks


class PanelMatrix(NativeMatrix):
    """Panels and the kernels that read them."""

    def __init__(self, panels: Panels, bias: torch.Tensor | None, kernels: DenseKernels) -> None:
        self.out_features, self.in_features = panels.shape
        self._panels = panels
        self._bias = None if bias is None else bias.float().contiguous().clone()
        self._kernels = kernels
        self.parameters = LinearArgs(
            weights=panels.codes.data_ptr(),
            scales=None if panels.scales is None else panels.scales.data_ptr(),
            offsets=None if panels.offsets is None else panels.offsets.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            num_rows=1,
            num_outputs=self.out_features,
            num_inputs=self.in_features,
            kind=panels.kind,
            y_type=ELEMENT_TYPES[torch.float32],
            zero=float(panels.zero),
        )
        """Filled in anew with each call: making one costs as much as a small product."""
        self.scratch_per_row = kernels.scratch_bytes(self.parameters)

    @property
    def num_bytes(self) -> int:
        return self._panels.num_bytes + (0 if self._bias is None else self._bias.nbytes)

    def multiply(self, x: torch.Tensor, out: torch.Tensor | None = None, *, adds: bool = False) -> torch.Tensor:
        num_rows, in_features = x.shape
        if out is None:
            assert not adds
            out = torch.empty(num_rows, self.out_features)
        assert in_features == self.in_features
        assert out.shape == (num_rows, self.out_features)
        assert out.dtype is torch.float32
        (x_stride, x_step), (y_stride, y_step) = x.stride(), out.stride()
        assert x_step == y_step == 1
        args = self.parameters
        args.x, args.x_stride, args.x_type = x.data_ptr(), x_stride, ELEMENT_TYPES[x.dtype]
        args.y, args.y_stride, args.adds = out.data_ptr(), y_stride, adds
        args.num_rows, args.num_threads = num_rows, torch.get_num_threads()
        self._kernels.multiply(args, self.scratch_per_row * num_rows)
        return out

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return unpack_rows(self._panels, indices, self._kernels)


class NativeLinear(LinearBackend):
    """What the components share."""

    def __init__(self, setup: LinearSetup) -> None:
        super().__init__(setup)
        self._kernels = DenseKernels(load_library())

    @abstractmethod
    def storage(self, pieces: Sequence[BlockRows]) -> Storage:
        """How a matrix of these pieces is kept."""

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedMatrix:
        return self.pack_blocks([as_blocks(weight)], bias)

    def pack_blocks(self, pieces: Sequence[BlockRows], bias: torch.Tensor | None = None) -> PackedMatrix:
        return PanelMatrix(pack(pieces, self.storage(pieces), self._kernels), bias, self._kernels)


class DenseLinear(NativeLinear):
    """`dense`: in the model's dtype."""

    capabilities = capabilities.DENSE

    def storage(self, pieces: Sequence[BlockRows]) -> Storage:
        return dense_storage(self.setup.dtype)


class Int8Linear(NativeLinear):
    """`int8`: 8.5 bits per weight."""

    capabilities = capabilities.QUANTISED

    def storage(self, pieces: Sequence[BlockRows]) -> Storage:
        return INT8


class Int4Linear(NativeLinear):
    """`int4`: 5 bits per weight."""

    capabilities = capabilities.QUANTISED

    def storage(self, pieces: Sequence[BlockRows]) -> Storage:
        return INT4


class StoredLinear(NativeLinear):
    """`stored`: as the file has them."""

    capabilities = capabilities.QUANTISED

    def storage(self, pieces: Sequence[BlockRows]) -> Storage:
        return stored_storage(pieces, self.setup.dtype)
