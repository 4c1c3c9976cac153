"""What the cases of the `sampler` slot hand to a sampler beside logits and parameters: made-up logits processors, and drafts.

What this file does not know: samplers, cases.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch

from slotwise.interfaces.sampler import LogitsEdits, SpecDecodeRows


class Edits(LogitsEdits):
    """Logits processors made up for a case."""

    def __init__(self, before: Callable[[torch.Tensor], None] | None = None, after: Callable[[torch.Tensor], None] | None = None) -> None:
        self._before, self._after = before, after
        self.seen: list[tuple[str, torch.dtype, tuple[int, ...]]] = []
        """Each call: place, dtype, shape."""

    @property
    def edits_after_temperature(self) -> bool:
        return self._after is not None

    def before_argmax(self, logits: torch.Tensor) -> bool:
        return self._apply("before_argmax", self._before, logits)

    def after_temperature(self, scaled: torch.Tensor) -> bool:
        return self._apply("after_temperature", self._after, scaled)

    def _apply(self, place: str, edit: Callable[[torch.Tensor], None] | None, logits: torch.Tensor) -> bool:
        self.seen.append((place, logits.dtype, tuple(logits.shape)))
        if edit is None:
            return False
        edit(logits)
        return True


@dataclasses.dataclass(frozen=True, slots=True)
class Drafts:
    """Drafts of each request, in the engine's layout."""

    token_ids: Sequence[Sequence[int]]
    probs: Sequence[torch.Tensor] | None = None
    """Per request, [its drafts, vocab_size]; None = all were certain."""

    def first_rows(self) -> list[int]:
        """[num_requests + 1], where each request's rows begin."""
        return [0, *np.cumsum([len(of_one) + 1 for of_one in self.token_ids]).tolist()]

    def rows(self, device: str) -> SpecDecodeRows:
        firsts = self.first_rows()
        counts = [len(of_one) for of_one in self.token_ids]
        targets = [firsts[request] + place for request, count in enumerate(counts) for place in range(count)]
        requests = [request for request, count in enumerate(counts) for _ in range(count + 1)]

        def ids(values: Sequence[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        return SpecDecodeRows(
            num_draft_tokens=tuple(counts),
            draft_token_ids=ids([token_id for of_one in self.token_ids for token_id in of_one]),
            draft_probs=None if self.probs is None else torch.cat(list(self.probs)).to(device),
            target_indices=ids(targets),
            bonus_indices=ids([first - 1 for first in firsts[1:]]),
            request_of_row=ids(requests),
        )
