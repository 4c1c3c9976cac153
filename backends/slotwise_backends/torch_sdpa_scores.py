"""Attention with its scores in the open: for soft caps, sinks, ALiBi and LSE, which torch's fused function does not know.

What this file does not know: where queries and keys come from.
"""

from __future__ import annotations

import torch


def with_alibi(bias: torch.Tensor | None, slopes: torch.Tensor, distance: torch.Tensor | None) -> torch.Tensor:
    """What is added to the scores: ALiBi and the mask."""
    assert distance is not None  # planned for layers with ALiBi
    alibi = slopes.to(distance.dtype) * -distance
    return alibi if bias is None else alibi + bias


def explicit_attention(
    query: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    bias: torch.Tensor | None,
    scale: float,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output like `query` [batch, num_kv_heads, rows, value_dim] and LSE [batch, num_kv_heads, rows].

    Rows that see no key come out as NaN. sinks: broadcastable to [batch, num_kv_heads, rows]; they join the denominator once.
    """
    scores = _product(query, k.transpose(-1, -2), is_dense=k.is_contiguous()).mul_(scale)
    if soft_cap:
        scores.div_(soft_cap).tanh_().mul_(soft_cap)
    if bias is not None:
        scores.add_(bias)
    peak = scores.amax(dim=-1)
    if sinks is not None:
        peak = torch.maximum(peak, sinks.to(peak.dtype))
    weights = scores.sub_(peak[..., None]).exp_()
    total = weights.sum(dim=-1)
    if sinks is not None:
        total += torch.exp(sinks.to(peak.dtype) - peak)
    return _product(weights, v, is_dense=v.is_contiguous()) / total[..., None], peak + torch.log(total)


def _product(rows: torch.Tensor, columns: torch.Tensor, *, is_dense: bool) -> torch.Tensor:
    """Matrix products of [batch, num_heads, ...] each. Where the heads of `columns` lie inside its tokens, torch.matmul would first copy
    it, which costs more than the product: then head by head."""
    if is_dense or columns.shape[0] == 1:
        return torch.matmul(rows, columns)
    batch, num_heads, num_rows, _ = rows.shape
    products = rows.new_empty(num_heads, batch, num_rows, columns.shape[-1])
    for head in range(num_heads):
        torch.bmm(rows[:, head], columns[:, head], out=products[head])
    return products.transpose(0, 1)


def merge(first: tuple[torch.Tensor, torch.Tensor], second: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [..., value_dim] and LSE [...] of attention to the keys of both, disjoint, of which each gave output and LSE."""
    lse = torch.logaddexp(first[1], second[1])
    output = first[0] * (first[1] - lse).exp_()[..., None] + second[0] * (second[1] - lse).exp_()[..., None]
    return output, lse
