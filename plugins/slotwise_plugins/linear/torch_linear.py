"""`torch` linear: plain torch on any device; what `auto` takes where the dense kernels cannot run."""

from __future__ import annotations

import torch

from slotwise.interfaces.linear import LinearBackend, PackedMatrix
from slotwise_plugins.linear import capabilities


class TorchMatrix(PackedMatrix):
    """The weight as it is, in the model's dtype."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight = weight
        self._bias = bias

    @property
    def num_bytes(self) -> int:
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def multiply(self, x: torch.Tensor, out: torch.Tensor | None = None, *, adds: bool = False) -> torch.Tensor:
        product = torch.nn.functional.linear(x.to(self._weight.dtype), self._weight, self._bias).float()
        if out is None:
            return product
        return out.add_(product) if adds else out.copy_(product)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return self._weight[indices].float()


class TorchLinear(LinearBackend):
    """Matrices in the model's dtype on its device."""

    capabilities = capabilities.TORCH

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedMatrix:
        dtype, device = getattr(torch, self.setup.dtype), self.setup.device
        return TorchMatrix(weight.to(device, dtype, copy=True), None if bias is None else bias.to(device, dtype, copy=True))
