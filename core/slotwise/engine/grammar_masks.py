"""Masks of grammars on logits. What this file does not know: grammars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from slotwise.interfaces.grammar import BITS_PER_WORD

GrammarMasks = Mapping[str, torch.Tensor]
"""Request id -> [1 + number of its drafts, ceil(vocab_size / 32)] int32, CPU: what may come after none, one, ... of them."""


def apply_grammar_masks(logits: torch.Tensor, masks: GrammarMasks, request_ids: Sequence[str], first_rows: Sequence[int]) -> None:
    """Sets forbidden ids to -inf in place. logits: [num_logits, vocab_size]. first_rows: [num_reqs + 1], where each request's rows
    begin."""
    rows: list[int] = []
    words: list[torch.Tensor] = []
    for index, request_id in enumerate(request_ids):
        mask = masks.get(request_id)
        if mask is not None:
            first, end = first_rows[index], first_rows[index + 1]
            rows += range(first, end)
            words.append(mask[: end - first])
    if rows:
        allowed = unpack_mask(torch.cat(words).to(logits.device), logits.shape[-1])
        logits[rows] = logits[rows].masked_fill_(~allowed, -torch.inf)


def unpack_mask(words: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """words: [..., num_words] int32. Returns [..., vocab_size] bool, True = allowed."""
    bits = torch.arange(BITS_PER_WORD, dtype=torch.int32, device=words.device)
    return (words.unsqueeze(-1).bitwise_right_shift(bits) & 1).bool().flatten(-2)[..., :vocab_size]
