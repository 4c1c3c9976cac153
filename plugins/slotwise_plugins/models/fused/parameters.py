"""From named tensors to packed matrices: each is packed as soon as its parts are there, so that no second copy of the model is held.

What this file does not know: file formats, how a matrix is stored, what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from slotwise.interfaces.linear import BlockRows, LinearBackend, PackedMatrix
from slotwise_plugins.models.fused.spec import DecoderSpec
from slotwise_plugins.models.parameter_loading import ParameterLoader
from slotwise_plugins.weights.blocks import as_blocks, as_dense

BIAS, WEIGHT = ".bias", ".weight"
_ROWS_COMPARED = 256


@dataclass(slots=True)
class Parameters:
    """Matrices by the names of their parts, vectors by their own."""

    matrices: dict[tuple[str, ...], PackedMatrix] = field(default_factory=dict)
    vectors: dict[str, torch.Tensor] = field(default_factory=dict)
    """float32, on the model's device."""
    embedding: torch.Tensor | None = None
    """[vocab_size, hidden_size] in the model's dtype; None where it is tied to the output head, whose rows serve."""
    head: tuple[str, ...] = ()
    """Key of the output head."""

    def vector(self, name: str | None) -> torch.Tensor | None:
        return None if name is None else self.vectors[name]


class PackingLoader(ParameterLoader):
    """Checks names and shapes as its base does, and packs instead of copying."""

    def __init__(self, model: Any, spec: DecoderSpec, linear: LinearBackend, device: str) -> None:
        super().__init__(model)
        self.parameters = Parameters()
        self._linear = linear
        self._device = device
        self._dtype = getattr(torch, linear.setup.dtype)
        self._norm_offset = 1.0 if spec.family.norm_adds_one else 0.0
        self._group_of: dict[str, tuple[str, ...]] = {}
        self._parts: dict[str, torch.Tensor | BlockRows] = {}
        head = self.tied.get(spec.head, spec.head)
        self._embedding = None if head == spec.embedding else spec.embedding
        self.parameters.head = (_stem(head),)
        groups: list[tuple[str, ...]] = [self.parameters.head]
        for layer in spec.layers:
            groups += [layer.qkv, (layer.output,), layer.gate_up, (layer.down,)]
        for group in groups:
            for name in (stem + ending for stem in group for ending in (WEIGHT, BIAS)):
                if name in self.targets:
                    self._group_of[name] = group

    def store(self, name: str, tensor: torch.Tensor | BlockRows) -> None:
        """Keep a tensor until its matrix is complete."""
        group = self._group_of.get(name)
        if name == self._embedding:
            self.parameters.embedding = as_dense(tensor).to(self._device, self._dtype, copy=True)
        elif group is None:
            self.parameters.vectors[name] = as_dense(tensor).to(self._device, torch.float32, copy=True) + self._norm_offset
        else:
            self._parts[name] = tensor
            if all(part in self._parts for part, of in self._group_of.items() if of == group):
                self.parameters.matrices[group] = self._packed(group)

    def _equals_stored(self, name: str, tensor: torch.Tensor | BlockRows) -> bool:
        if tensor.shape != self.targets[name].shape:
            return False
        matrix = self.parameters.matrices[self._group_of[name]]
        some = torch.arange(min(tensor.shape[0], _ROWS_COMPARED), device=self._device)
        return torch.equal(self._pack([tensor], None).rows(some), matrix.rows(some))

    def _packed(self, group: tuple[str, ...]) -> PackedMatrix:
        weights = [self._parts.pop(stem + WEIGHT) for stem in group]
        biases = [as_dense(self._parts.pop(stem + BIAS)) for stem in group if stem + BIAS in self._parts]
        return self._pack(weights, torch.cat(biases) if biases else None)

    def _pack(self, weights: Sequence[torch.Tensor | BlockRows], bias: torch.Tensor | None) -> PackedMatrix:
        """Row under row."""
        if self._linear.capabilities.block_schemes:
            return self._linear.pack_blocks([as_blocks(weight) for weight in weights], bias)
        return self._linear.pack(torch.cat([as_dense(weight) for weight in weights]), bias)


def _stem(name: str) -> str:
    return name.removesuffix(WEIGHT)
