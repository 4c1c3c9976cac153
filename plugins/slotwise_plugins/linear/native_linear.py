"""Linear components on the CPU: weights as they are, or in 8 or 4 bits, multiplied by the dense kernels.

What this file does not know: how panels are laid out, how the kernels work.
"""

from __future__ import annotations

from abc import abstractmethod

import torch

from slotwise.interfaces.linear import LinearBackend, LinearSetup, PackedMatrix
from slotwise_plugins.linear import capabilities
from slotwise_plugins.linear.panels import Panels, pack_dense, pack_quantised, unpack_rows
from slotwise_plugins.native.library import ELEMENT_TYPES, KIND_U4, KIND_U8, DenseKernels, LinearArgs, load_library


class PanelMatrix(PackedMatrix):
    """Panels and the kernels that read them."""

    def __init__(self, panels: Panels, weight: torch.Tensor, bias: torch.Tensor | None, kernels: DenseKernels) -> None:
        self.out_features, self.in_features = weight.shape
        self._panels = panels
        self._bias = None if bias is None else bias.float().contiguous().clone()
        self._kernels = kernels

    @property
    def num_bytes(self) -> int:
        return self._panels.num_bytes + (0 if self._bias is None else self._bias.nbytes)

    def multiply(self, x: torch.Tensor, out: torch.Tensor | None = None, *, adds: bool = False) -> torch.Tensor:
        if out is None:
            assert not adds
            out = torch.empty(len(x), self.out_features)
        assert x.shape[1] == self.in_features
        assert out.shape == (len(x), self.out_features)
        assert x.stride(1) == out.stride(1) == 1
        panels = self._panels
        self._kernels.multiply(
            LinearArgs(
                x=x.data_ptr(),
                weights=panels.codes.data_ptr(),
                scales=None if panels.scales is None else panels.scales.data_ptr(),
                bias=None if self._bias is None else self._bias.data_ptr(),
                y=out.data_ptr(),
                x_stride=x.stride(0),
                y_stride=out.stride(0),
                num_rows=len(x),
                num_outputs=self.out_features,
                num_inputs=self.in_features,
                kind=panels.kind,
                x_type=ELEMENT_TYPES[x.dtype],
                y_type=ELEMENT_TYPES[out.dtype],
                adds=adds,
                num_threads=torch.get_num_threads(),
                zero=float(panels.zero),
            )
        )
        return out

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return unpack_rows(self._panels, indices, self.in_features)


class NativeLinear(LinearBackend):
    """What the three components share."""

    def __init__(self, setup: LinearSetup) -> None:
        super().__init__(setup)
        self._kernels = DenseKernels(load_library())

    @abstractmethod
    def panels(self, weight: torch.Tensor) -> Panels:
        """weight: [out_features, in_features]."""

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedMatrix:
        return PanelMatrix(self.panels(weight), weight, bias, self._kernels)


class DenseLinear(NativeLinear):
    """`dense`: in the model's dtype."""

    capabilities = capabilities.DENSE

    def panels(self, weight: torch.Tensor) -> Panels:
        return pack_dense(weight, getattr(torch, self.setup.dtype))


class Int8Linear(NativeLinear):
    """`int8`: 8.5 bits per weight."""

    capabilities = capabilities.QUANTISED

    def panels(self, weight: torch.Tensor) -> Panels:
        return pack_quantised(_finite(weight), KIND_U8)


class Int4Linear(NativeLinear):
    """`int4`: 4.5 bits per weight."""

    capabilities = capabilities.QUANTISED

    def panels(self, weight: torch.Tensor) -> Panels:
        return pack_quantised(_finite(weight), KIND_U4)


def _finite(weight: torch.Tensor) -> torch.Tensor:
    """Raises ValueError."""
    if not bool(weight.isfinite().all()):
        raise ValueError("a weight is NaN or infinite, which cannot be quantised; use the linear component dense")
    return weight
