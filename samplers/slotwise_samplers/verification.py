"""Verification of drafts: which are kept, and which token ends each request's step.

Without draft probabilities a draft is kept iff it is what the plain sampler draws at its place, with the same random number. That is kept
with probability p, and otherwise ends the row with p without the draft, as the rule for a certain draft (q = 1) wants it; and the tokens
are, one by one, those of the engine without speculation. With probabilities: kept if u < p / q, else one from max(p - q, 0).
Source: Leviathan et al., 2023, "Fast inference from transformers via speculative decoding", section 2.3 and appendix A.1.

What this file does not know: how probabilities come about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from slotwise.interfaces.sampler import SpecDecodeRows
from slotwise_samplers.random_draw import DRAW, VERIFY, draw


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """Result of `verify_drafts`."""

    token_ids: torch.Tensor
    """[num_reqs, 1 + most drafts] int64, -1 behind the last token; -1 first where a needed row was unusable."""
    token_of_row: torch.Tensor
    """[num_logits] int64: the token that each row of the logits gave, 0 for rows behind the last token."""


def verify_drafts(
    drawn: torch.Tensor,
    rows: SpecDecodeRows,
    *,
    is_greedy: torch.Tensor | None,
    target_probs: torch.Tensor | None,
    uniforms: Callable[[int], torch.Tensor],
) -> Verified:
    """drawn: [num_logits] int64, what the plain sampler gives for each row, -1 = unusable. is_greedy: [num_logits] bool, None = no row.
    target_probs: [num_logits, vocab_size] float32, wanted if `rows.draft_probs` is given and some row is random. uniforms: purpose -> as
    `RandomDraw.uniforms`; called for rows of the logits."""
    targets, drafts = rows.target_indices, rows.draft_token_ids
    ends = drawn.clone()
    kept = drawn[targets] == drafts
    if rows.draft_probs is not None and target_probs is not None and drafts.numel():
        kept_by_ratio, others = _by_ratio(target_probs[targets], rows.draft_probs, drafts, uniforms, targets)
        was_certain = rows.draft_probs.gather(-1, drafts.unsqueeze(-1)).squeeze(-1) <= 0
        by_match = was_certain | (drawn[targets] < 0) | (False if is_greedy is None else is_greedy[targets])
        kept = torch.where(by_match, kept, kept_by_ratio)
        ends[targets] = torch.where(by_match, drawn[targets], others)
    return _assemble(ends, kept, rows)


def _by_ratio(
    p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor, uniforms: Callable[[int], torch.Tensor], targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which drafts are kept, [num_drafts] bool, and what stands in the place of those that are not, [num_drafts] int64."""
    index = drafts.unsqueeze(-1)
    p_draft, q_draft = p.gather(-1, index).squeeze(-1).double(), q.gather(-1, index).squeeze(-1).double()
    kept = uniforms(VERIFY).to(p.device)[targets] * q_draft < p_draft
    rest = (p - q).clamp_(min=0)
    rest = torch.where(rest.sum(dim=-1, keepdim=True) > 0, rest, p)  # p equals q but for rounding
    return kept, draw(rest, uniforms(DRAW).to(p.device)[targets])


def _assemble(ends: torch.Tensor, kept: torch.Tensor, rows: SpecDecodeRows) -> Verified:
    """Drafts up to the first that is not kept, then the token that ends the row. ends: [num_logits]; kept: [num_drafts] bool."""
    device = ends.device
    num_drafts = torch.tensor(rows.num_draft_tokens, device=device)
    most = int(max(rows.num_draft_tokens, default=0))
    place = torch.arange(most + 1, device=device)
    first_rows = rows.bonus_indices - num_drafts
    grid = (first_rows.unsqueeze(-1) + place).clamp_(max=ends.numel() - 1)  # [num_reqs, most + 1] rows of the logits

    is_kept = torch.zeros_like(ends, dtype=torch.bool)
    is_kept[rows.target_indices] = kept
    draft_of_row = torch.zeros_like(ends)
    draft_of_row[rows.target_indices] = rows.draft_token_ids
    run = (is_kept[grid] & (place < num_drafts.unsqueeze(-1))).long().cumprod(dim=-1)
    num_kept = run.sum(dim=-1, keepdim=True)

    tokens = torch.where(place < num_kept, draft_of_row[grid], ends[grid])
    is_token = place <= num_kept
    is_unusable = ((tokens < 0) & is_token).any(dim=-1, keepdim=True)
    token_ids = torch.where(is_token & ~is_unusable, tokens, -1)
    token_of_row = torch.zeros_like(ends)
    token_of_row[grid[is_token]] = tokens[is_token].clamp(min=0)
    return Verified(token_ids=token_ids, token_of_row=token_of_row)
