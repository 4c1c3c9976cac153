"""min_p, top_k and top_p: which ids of a row may be drawn.

`scaled`, [num_rows, vocab_size] float32, are logits after temperature, the row's best at 0, dropped ids at -inf. Each row has its own
parameter, nothing is changed in place. Results depend on a row's values only, never on the path taken for the batch: ties are decided by
rule, not by a sort.
"""

from __future__ import annotations

import torch

_NUCLEUS_GUESS = 512
"""Most nuclei are far smaller than the vocabulary; the whole of it is sorted only where this many of the largest do not cover one."""
_ROUNDING = 1e-6
"""Relative error of a mass that was summed from float32; a mass this close below p counts as p, so that 0.5 + 0.3 reaches 0.8."""


def keep_min_p(scaled: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Drops ids with p < min_p * the best p, that is scaled < ln(min_p). min_p: [num_rows] float32, 0 = off.

    Source: Nguyen et al., 2024, "Turning up the heat: min-p sampling", section 3.
    """
    return scaled.masked_fill(scaled < min_p.log().unsqueeze(-1), -torch.inf)


def keep_top_k(logits: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Drops what is strictly below the k-th largest value; ties with it stay.

    logits: [num_rows, vocab_size] float32, before or after temperature. top_k: [num_rows] integer; below 1, or vocab_size and more = off.
    Sorts no more than the largest k of the batch.
    """
    vocab_size = logits.shape[-1]
    is_off = (top_k < 1) | (top_k >= vocab_size)
    k = top_k.masked_fill(is_off, 1).long()
    largest = logits.topk(int(k.max()) if k.numel() else 1, dim=-1).values
    kth = largest.gather(-1, (k - 1).unsqueeze(-1)).masked_fill(is_off.unsqueeze(-1), -torch.inf)
    return logits.masked_fill(logits < kth, -torch.inf)


def keep_top_p(scaled: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keeps the smallest set of most likely ids whose mass reaches p, out of what is left and renormalised.

    top_p: [num_rows] float32, 1 = off. An id stays iff the mass of the more likely ones is below p, so the best one always stays. Among
    equals at the edge lower ids come first.
    Source: Holtzman et al., 2020, "The curious case of neural text degeneration", section 3.1.
    """
    vocab_size = scaled.shape[-1]
    is_off = top_p >= 1
    log_total = scaled.logsumexp(dim=-1, keepdim=True)
    num_sorted = min(_NUCLEUS_GUESS, vocab_size)
    values, mass = _largest(scaled, log_total, num_sorted)
    if num_sorted < vocab_size and bool(((mass[:, -1] < top_p) & ~is_off).any()):
        values, mass = _largest(scaled, log_total, vocab_size)
    mass_before = torch.cat((torch.zeros_like(mass[:, :1]), mass[:, :-1]), dim=-1)
    limit = top_p.to(torch.float64).unsqueeze(-1) * (1 - _ROUNDING)
    num_kept = (mass_before < limit).sum(dim=-1, keepdim=True).clamp_(min=1)
    edge = values.gather(-1, num_kept - 1).masked_fill(is_off.unsqueeze(-1), -torch.inf)
    return _keep_first(scaled, edge, num_kept.masked_fill(is_off.unsqueeze(-1), vocab_size))


def _largest(scaled: torch.Tensor, log_total: torch.Tensor, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `num` largest values of each row, falling, and their running mass in float64; both [num_rows, num]."""
    covers_all = num == scaled.shape[-1]
    values = scaled.sort(dim=-1, descending=True).values if covers_all else scaled.topk(num, dim=-1).values
    return values, (values - log_total).exp_().cumsum(dim=-1, dtype=torch.float64)


def _keep_first(scaled: torch.Tensor, edge: torch.Tensor, num_kept: torch.Tensor) -> torch.Tensor:
    """Keeps what is above `edge`, and of what equals it the lowest ids, `num_kept` in all. edge, num_kept: [num_rows, 1]."""
    kept = scaled >= edge
    if bool((kept.sum(dim=-1, keepdim=True) > num_kept).any()):
        above = scaled > edge
        at_edge = scaled == edge
        kept = above | (at_edge & (at_edge.cumsum(dim=-1) <= num_kept - above.sum(dim=-1, keepdim=True)))
    return scaled.masked_fill(~kept, -torch.inf)
