"""Which row of a step's logits stands for what: requests, positions, drafts under verification.

drafts of three requests   [[7, 8], [], [5]]
rows of the logits          0 1 2   3   4 5     one per draft, and one for the token after all of them
requests                    0 0 0   1   2 2
drafts before the row       - 7 78  -   - 5
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from slotwise.engine.prepare_inputs import IntArray, StepInputs
from slotwise.interfaces.logits_processor import LogitsRows
from slotwise.interfaces.sampler import SpecDecodeRows


def first_logits_rows(inputs: StepInputs) -> IntArray:
    """[num_reqs + 1], where each request's rows begin; the last entry is their number."""
    starts = np.zeros(inputs.num_reqs + 1, dtype=np.int64)
    np.cumsum(inputs.num_drafts + 1, out=starts[1:])
    return starts


def logits_rows(inputs: StepInputs, drafts: Sequence[Sequence[int]]) -> LogitsRows:
    """drafts: per request; empty for a step without any."""
    if not inputs.has_drafts:
        return LogitsRows(requests=range(inputs.num_reqs), drafts=((),) * inputs.num_reqs)
    return LogitsRows(
        requests=[request for request, of_request in enumerate(drafts) for _ in range(len(of_request) + 1)],
        drafts=[of_request[:count] for of_request in drafts for count in range(len(of_request) + 1)],
        has_drafts=True,
    )


def spec_decode_rows(
    inputs: StepInputs, drafts: Sequence[Sequence[int]], probs: Sequence[torch.Tensor | None], *, vocab_size: int, device: str
) -> SpecDecodeRows | None:
    """probs: per request, [its drafts, vocab_size] or None. Returns None for a step without drafts."""
    if not inputs.has_drafts:
        return None
    starts = first_logits_rows(inputs)
    bonus = starts[1:] - 1
    is_target = np.ones(starts[-1], dtype=np.bool_)
    is_target[bonus] = False
    return SpecDecodeRows(
        num_draft_tokens=tuple(inputs.num_drafts.tolist()),
        draft_token_ids=torch.tensor([token_id for of_request in drafts for token_id in of_request], device=device),
        draft_probs=_draft_probs(drafts, probs, vocab_size, device),
        target_indices=torch.from_numpy(np.flatnonzero(is_target)).to(device),
        bonus_indices=torch.from_numpy(bonus).to(device),
        request_of_row=torch.from_numpy(np.repeat(np.arange(inputs.num_reqs), inputs.num_drafts + 1)).to(device),
    )


def _draft_probs(
    drafts: Sequence[Sequence[int]], probs: Sequence[torch.Tensor | None], vocab_size: int, device: str
) -> torch.Tensor | None:
    if all(of_request is None for of_request in probs):
        return None
    rows = [
        torch.zeros((len(of_request), vocab_size), device=device) if known is None else known[: len(of_request)]
        for of_request, known in zip(drafts, probs, strict=True)
    ]
    return torch.cat(rows)
