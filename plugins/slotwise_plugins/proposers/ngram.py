"""`ngram`: prompt lookup. If the end of a sequence stands in it before, what followed there is drafted.

Source: Saxena, 2023, "Prompt lookup decoding".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slotwise.interfaces.proposer import Drafts, Proposer, ProposeRequest, ProposerSetup
from slotwise_plugins.proposers.options import NGRAM, NgramOptions


class NgramProposer(Proposer):
    """Costs a pass over each request's tokens; no model, no memory."""

    capabilities = NGRAM

    def __init__(self, setup: ProposerSetup) -> None:
        super().__init__(setup)
        self._options = setup.options if isinstance(setup.options, NgramOptions) else NgramOptions()

    def propose(self, request: ProposeRequest) -> Drafts:
        options = self._options
        return Drafts(
            token_ids=[
                continuation(row.token_ids, min_match=options.min_match, max_match=options.max_match, most=row.num_drafts)
                if row.num_drafts
                else []
                for row in request.rows
            ]
        )


def continuation(token_ids: npt.NDArray[np.int64], *, min_match: int, max_match: int, most: int) -> list[int]:
    """Up to `most` tokens behind an earlier occurrence of the sequence's end: of the longest end of min_match .. max_match tokens that
    occurs before, the earliest occurrence. token_ids: [num_tokens]."""
    size = len(token_ids)
    ends = np.flatnonzero(token_ids[:-1] == token_ids[-1])  # where an occurrence of length 1 ends
    best: npt.NDArray[np.int64] | None = ends if min_match == 1 else None
    for length in range(2, max_match + 1):
        if length >= size:
            break
        ends = ends[ends >= length - 1]
        ends = ends[token_ids[ends - length + 1] == token_ids[size - length]]
        if not len(ends):
            break
        if length >= min_match:
            best = ends
    if best is None or not len(best):
        return []
    start = int(best[0]) + 1
    found: list[int] = token_ids[start : start + most].tolist()
    return found
