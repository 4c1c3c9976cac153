"""Merging attention over parts of the keys into attention over all of them, by the parts' log-sum-exp (natural logarithm).

What this file does not know: who made the parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def merge_parts(outputs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [num_tokens, num_heads, dim] in the first part's dtype and LSE [num_tokens, num_heads] float32.

    A part that saw no key has LSE -inf and counts nothing; where none saw any, the output is 0. A sink may be in one part's LSE only.
    Source: softmax over a partition; Dao et al. 2023 (Flash-Decoding).
    """
    total = torch.logsumexp(torch.stack([lse.float() for lse in lses]), dim=0)
    base = total.masked_fill(torch.isneginf(total), 0.0)
    merged = torch.zeros_like(outputs[0], dtype=torch.float32)
    for output, lse in zip(outputs, lses, strict=True):
        weight = torch.exp(lse.float() - base)[..., None]
        merged += torch.where(weight > 0, output.float() * weight, 0.0)
    return merged.to(outputs[0].dtype), total.masked_fill(torch.isneginf(total), -math.inf)
