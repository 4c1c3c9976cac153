"""Logprobs of a step: the sampled id's value and rank, and the most likely ids."""

from __future__ import annotations

import torch

from slotwise.interfaces.sampler import LogprobsTensors


def logprobs_source(logits: torch.Tensor, mode: str, shift: torch.Tensor | None = None) -> torch.Tensor:
    """The values a mode reports, [num_rows, vocab_size] float32, in memory of their own.

    logits: [num_rows, vocab_size] float32 of the moment the mode means. shift: [num_rows], what was taken off them; it does not matter to
    logprobs and is put back for `*_logits`.
    """
    if mode.endswith("logprobs"):
        return logits.log_softmax(dim=-1)
    return logits.clone() if shift is None else logits + shift.unsqueeze(-1)


def gather_logprobs(values: torch.Tensor, token_ids: torch.Tensor, num_logprobs: int) -> LogprobsTensors:
    """Sampled ids first, then the `num_logprobs` largest of each row, falling; -1 = the whole vocabulary.

    values: [num_rows, vocab_size] float32. token_ids: [num_rows] int64; -1 in a row without a token, whose values then mean nothing.
    """
    sampled = token_ids.unsqueeze(-1)
    sampled_values = values.gather(-1, sampled.clamp(min=0))
    ranks = (values >= sampled_values).sum(dim=-1)
    vocab_size = values.shape[-1]
    num_largest = vocab_size if num_logprobs == -1 else min(num_logprobs, vocab_size)
    if num_largest == 0:
        return LogprobsTensors(token_ids=sampled, logprobs=sampled_values, ranks=ranks)
    largest = values.topk(num_largest, dim=-1)
    return LogprobsTensors(
        token_ids=torch.cat((sampled, largest.indices), dim=-1),
        logprobs=torch.cat((sampled_values, largest.values), dim=-1),
        ranks=ranks,
    )
