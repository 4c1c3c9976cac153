"""Tensors that keep their places, so that a device graph which captured them reads what later steps put there.

What this file does not know: what the tensors mean.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch


class CapturedTensors:
    """One set of named tensors for each key."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, dict[str, torch.Tensor]] = {}

    def refresh(
        self, key: Hashable, tensors: Mapping[str, torch.Tensor], widths: Mapping[str, int] | None = None
    ) -> dict[str, torch.Tensor]:
        """The key's tensors, holding what `tensors` hold. widths: name -> least size of the last dimension, for tensors that may grow; what
        the source does not fill keeps its old content."""
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = {name: _roomy(tensor, (widths or {}).get(name, 0)) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            width = min(kept[name].shape[-1], tensor.shape[-1])
            kept[name][..., :width].copy_(tensor[..., :width])
        return kept


def _roomy(tensor: torch.Tensor, width: int) -> torch.Tensor:
    return tensor.new_zeros(*tensor.shape[:-1], max(width, tensor.shape[-1]))
