"""`bad_words`: the last token of a forbidden sequence is banned where the tokens before it stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from slotwise.interfaces.logits_processor import LogitsRows, RowRequest, RowStatesProcessor
from slotwise_samplers import capabilities
from slotwise_samplers.processors.row_ids import RowIds


@dataclass(frozen=True, slots=True)
class ForbiddenWords:
    """Of one request."""

    words: Sequence[Sequence[int]]
    output_token_ids: Sequence[int]
    longest: int

    def banned(self, drafts: Sequence[int]) -> list[int]:
        """Ids that would complete a word behind the output and `drafts`."""
        output = self.output_token_ids
        num_before = self.longest - 1
        tail = [*output[max(len(output) - num_before, 0) :], *drafts] if num_before else []
        return [word[-1] for word in self.words if len(word) <= len(tail) + 1 and tail[len(tail) - len(word) + 1 :] == list(word[:-1])]


class BadWords(RowStatesProcessor[ForbiddenWords]):
    """Bans by the request's own output; the prompt does not count."""

    capabilities = capabilities.BAD_WORDS

    def make_state(self, request: RowRequest) -> ForbiddenWords | None:
        words = request.bad_words_token_ids
        return ForbiddenWords(words, request.output_token_ids, max(map(len, words))) if words else None

    def apply(self, logits: torch.Tensor, rows: LogitsRows) -> bool:
        banned = RowIds(self._banned(rows), self.setup.vocab_size, logits.device)
        if len(banned):
            banned.put(logits, -torch.inf)
        return len(banned) > 0

    def _banned(self, rows: LogitsRows) -> Iterator[tuple[int, list[int]]]:
        return ((row, state.banned(drafts)) for row, state, drafts in self.active_rows(rows))
