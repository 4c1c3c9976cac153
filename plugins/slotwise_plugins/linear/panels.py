"""Matrices in the layout that the dense kernels read: panels of 16 output features. See `native/kernels/dense.h`.

What this file does not know: how they are multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slotwise_plugins.native.library import GROUP, KIND_BF16, KIND_F32, KIND_U4, KIND_U8, PANEL

ZERO_U8 = 128
"""Code of 0 in 8 bits, which are symmetric; 4 bits are too few for that and have an offset instead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panels:
    """A packed weight."""

    kind: int
    codes: torch.Tensor
    """[num_panels, ...], see `dense.h`."""
    scales: torch.Tensor | None = None
    """[num_panels, in_features / 32, 16] float16."""
    offsets: torch.Tensor | None = None
    """[num_panels, in_features / 32, 16] float16: what the code 0 means; None = it is `zero` codes below 0."""
    zero: int = 0

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.codes, self.scales, self.offsets) if tensor is not None)


def pack_dense(weight: torch.Tensor, dtype: torch.dtype) -> Panels:
    """weight: [out_features, in_features]. dtype: float32 or bfloat16, what is stored."""
    unit, kind = (1, KIND_F32) if dtype == torch.float32 else (2, KIND_BF16)
    padded = _padded(weight.to(dtype), unit)
    num_rows, num_inputs = padded.shape
    panels = padded.view(num_rows // PANEL, PANEL, num_inputs // unit, unit).transpose(1, 2).contiguous()
    return Panels(kind=kind, codes=panels)


def pack_int8(weight: torch.Tensor) -> Panels:
    """In groups of 32 inputs: weight = scale * (code - 128), scale = largest / 127 in float16, codes to the nearest. weight:
    [out_features, in_features]."""
    groups = _groups(weight)
    scales = (groups.abs().amax(dim=-1) / (ZERO_U8 - 1)).half()
    codes = _codes(groups, scales, ZERO_U8, low=1, high=2 * ZERO_U8 - 1)
    return Panels(kind=KIND_U8, codes=_interleave_bytes(codes), scales=_interleave_scales(scales), zero=ZERO_U8)


def pack_int4(weight: torch.Tensor) -> Panels:
    """In groups of 32 inputs: weight = scale * code + offset, offset = smallest, scale = (largest - smallest) / 15, both in float16."""
    groups = _groups(weight)
    offsets = groups.amin(dim=-1).half()
    scales = ((groups.amax(dim=-1) - offsets.float()) / 15).clamp_(min=0).half()
    codes = _codes(groups - offsets.float().unsqueeze(-1), scales, 0, low=0, high=15)
    return Panels(kind=KIND_U4, codes=_interleave_halves(codes), scales=_interleave_scales(scales), offsets=_interleave_scales(offsets))


def unpack_rows(panels: Panels, indices: torch.Tensor, num_inputs: int) -> torch.Tensor:
    """Rows of the weight as float32, [len(indices), num_inputs]."""
    panel, place = indices // PANEL, indices % PANEL
    chosen = panels.codes[panel, :, place]
    if panels.scales is None:
        return chosen.reshape(len(indices), -1)[:, :num_inputs].float()
    if panels.kind == KIND_U4:
        chosen = torch.stack((chosen & 15, chosen >> 4), dim=2)
    values = (chosen.reshape(len(indices), -1, GROUP).float() - panels.zero) * panels.scales[panel, :, place].float().unsqueeze(-1)
    if panels.offsets is not None:
        values += panels.offsets[panel, :, place].float().unsqueeze(-1)
    return values.view(len(indices), -1)[:, :num_inputs]


def _padded(weight: torch.Tensor, unit: int) -> torch.Tensor:
    """With zeros, to whole panels and whole units of inputs."""
    num_rows, num_inputs = weight.shape
    return torch.nn.functional.pad(weight, (0, -num_inputs % unit, 0, -num_rows % PANEL))


def _groups(weight: torch.Tensor) -> torch.Tensor:
    """[num_rows, num_groups, 32] float32, padded."""
    padded = _padded(weight.float(), GROUP)
    return padded.view(len(padded), -1, GROUP)


def _codes(groups: torch.Tensor, scales: torch.Tensor, zero: int, *, low: int, high: int) -> torch.Tensor:
    """[num_rows, num_inputs] uint8."""
    inverse = torch.where(scales > 0, 1 / scales.float(), 0.0).unsqueeze(-1)
    return (groups * inverse).round_().add_(zero).clamp_(low, high).to(torch.uint8).view(len(groups), -1)


def _interleave_scales(scales: torch.Tensor) -> torch.Tensor:
    return scales.view(len(scales) // PANEL, PANEL, -1).transpose(1, 2).contiguous()


def _interleave_bytes(codes: torch.Tensor) -> torch.Tensor:
    num_rows, num_inputs = codes.shape
    return codes.view(num_rows // PANEL, PANEL, num_inputs // 4, 4).transpose(1, 2).contiguous()


def _interleave_halves(codes: torch.Tensor) -> torch.Tensor:
    """Of 8 inputs the first four are the low halves of 4 bytes."""
    num_rows, num_inputs = codes.shape
    eights = codes.view(num_rows // PANEL, PANEL, num_inputs // 8, 2, 4)
    return (eights[:, :, :, 0] | eights[:, :, :, 1] << 4).transpose(1, 2).contiguous()
