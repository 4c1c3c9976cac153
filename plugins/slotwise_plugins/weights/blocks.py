"""Between dense tensors and `BlockRows`."""

from __future__ import annotations

import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from slotwise.interfaces.linear import BlockRows

_SCHEMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def as_blocks(matrix: torch.Tensor | BlockRows) -> BlockRows:
    """matrix: [num_rows, num_inputs], any float dtype."""
    if isinstance(matrix, BlockRows):
        return matrix
    plain = matrix if matrix.dtype in _SCHEMES else matrix.float()
    return BlockRows(scheme=_SCHEMES[plain.dtype], data=plain.cpu().contiguous().view(torch.uint8), num_inputs=matrix.shape[1])


def as_dense(matrix: torch.Tensor | BlockRows) -> torch.Tensor:
    """[num_rows, num_inputs]; float32 if it was in blocks."""
    if isinstance(matrix, torch.Tensor):
        return matrix
    values = dequantize(matrix.data.contiguous().numpy(), GGMLQuantizationType[matrix.scheme])
    return torch.from_numpy(values).float().reshape(matrix.shape)
