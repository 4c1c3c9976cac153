"""Matrices in the layout that the dense kernels read: panels of 16 output features. See `native/kernels/dense.h`.

What this file does not know: how they are multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slotwise_plugins.native.library import GROUP, KIND_BF16, KIND_F32, KIND_U4, KIND_U8, PANEL

MAX_CODE = {KIND_U8: 127, KIND_U4: 7}
"""Largest code on either side of zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panels:
    """A packed weight."""

    kind: int
    codes: torch.Tensor
    """[num_panels, ...], see `dense.h`."""
    scales: torch.Tensor | None = None
    """[num_panels, in_features / 32, 16] float16."""
    zero: int = 0
    """Code of 0."""

    @property
    def num_bytes(self) -> int:
        return self.codes.nbytes + (0 if self.scales is None else self.scales.nbytes)


def pack_dense(weight: torch.Tensor, dtype: torch.dtype) -> Panels:
    """weight: [out_features, in_features]. dtype: float32 or bfloat16, what is stored."""
    unit, kind = (1, KIND_F32) if dtype == torch.float32 else (2, KIND_BF16)
    padded = _padded(weight.to(dtype), unit)
    num_rows, num_inputs = padded.shape
    panels = padded.view(num_rows // PANEL, PANEL, num_inputs // unit, unit).transpose(1, 2).contiguous()
    return Panels(kind=kind, codes=panels)


def pack_quantised(weight: torch.Tensor, kind: int) -> Panels:
    """Symmetric codes in groups of 32 inputs: weight = scale * (code - zero), scale = largest / 127 (or 7), in float16, codes to the
    nearest. weight: [out_features, in_features] float32."""
    padded = _padded(weight.float(), GROUP)
    num_rows, num_inputs = padded.shape
    groups = padded.view(num_rows, num_inputs // GROUP, GROUP)
    high = MAX_CODE[kind]
    scales = (groups.abs().amax(dim=-1) / high).half()
    inverse = torch.where(scales > 0, 1 / scales.float(), 0.0)
    codes = (groups * inverse.unsqueeze(-1)).round_().clamp_(-high, high).add_(high + 1).to(torch.uint8).view(num_rows, num_inputs)
    return Panels(
        kind=kind,
        codes=_interleave_bytes(codes) if kind == KIND_U8 else _interleave_halves(codes),
        scales=scales.view(num_rows // PANEL, PANEL, -1).transpose(1, 2).contiguous(),
        zero=high + 1,
    )


def unpack_rows(panels: Panels, indices: torch.Tensor, num_inputs: int) -> torch.Tensor:
    """Rows of the weight as float32, [len(indices), num_inputs]."""
    panel, place = indices // PANEL, indices % PANEL
    chosen = panels.codes[panel, :, place]
    if panels.scales is None:
        return chosen.reshape(len(indices), -1)[:, :num_inputs].float()
    if panels.kind == KIND_U4:
        chosen = torch.stack((chosen & 15, chosen >> 4), dim=2)
    codes = chosen.reshape(len(indices), -1, GROUP).float() - panels.zero
    return (codes * panels.scales[panel, :, place].float().unsqueeze(-1)).view(len(indices), -1)[:, :num_inputs]


def _padded(weight: torch.Tensor, unit: int) -> torch.Tensor:
    """With zeros, to whole panels and whole units of inputs."""
    num_rows, num_inputs = weight.shape
    return torch.nn.functional.pad(weight, (0, -num_inputs % unit, 0, -num_rows % PANEL))


def _interleave_bytes(codes: torch.Tensor) -> torch.Tensor:
    num_rows, num_inputs = codes.shape
    return codes.view(num_rows // PANEL, PANEL, num_inputs // 4, 4).transpose(1, 2).contiguous()


def _interleave_halves(codes: torch.Tensor) -> torch.Tensor:
    """Of 8 inputs the first four are the low halves of 4 bytes."""
    num_rows, num_inputs = codes.shape
    eights = codes.view(num_rows // PANEL, PANEL, num_inputs // 8, 2, 4)
    return (eights[:, :, :, 0] | eights[:, :, :, 1] << 4).transpose(1, 2).contiguous()
