"""Logprobs of a step: the sampled id's value and rank, and the most likely ids.

Only what is asked for is normalised: of the whole vocabulary no more than a sum, a search and a count are made.
"""

from __future__ import annotations

import torch

from slotwise.interfaces.sampler import LogprobsTensors


def gather_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, num_logprobs: int, *, mode: str, shift: torch.Tensor | None = None
) -> LogprobsTensors:
    """Sampled ids first, then the `num_logprobs` largest of each row, falling; -1 = the whole vocabulary.

    logits: [num_rows, vocab_size] float32 of the moment the mode means. token_ids: [num_rows] int64; -1 in a row without a token, whose
    values then mean nothing. mode: of `LOGPROBS_MODES`. shift: [num_rows], what was taken off the logits; it does not matter to logprobs
    and is put back for `*_logits`.
    """
    sampled = token_ids.unsqueeze(-1)
    values = logits.gather(-1, sampled.clamp(min=0))
    ranks = torch.ge(logits, values, out=torch.empty_like(logits)).sum(dim=-1).long()  # adding floats takes half the time of adding bools
    vocab_size = logits.shape[-1]
    num_largest = vocab_size if num_logprobs == -1 else min(num_logprobs, vocab_size)
    ids = sampled
    if num_largest:
        largest = logits.topk(num_largest, dim=-1)
        ids, values = torch.cat((sampled, largest.indices), dim=-1), torch.cat((values, largest.values), dim=-1)
    if mode.endswith("logprobs"):
        values = values - logits.logsumexp(dim=-1, keepdim=True)
    elif shift is not None:
        values = values + shift.unsqueeze(-1)
    return LogprobsTensors(token_ids=ids, logprobs=values, ranks=ranks)
