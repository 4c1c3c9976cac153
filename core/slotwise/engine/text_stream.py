"""`TextStream`: what turns one request's token ids into text, whatever the tokenizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TextStream(ABC):
    """Text of one output. Pieces once given never change; text that a later token could still change is kept back."""

    @abstractmethod
    def append(self, token_ids: Sequence[int]) -> str:
        """Takes the next ids, in any grouping; returns the text that is now certain, maybe empty. Amortised O(1) per id."""

    @abstractmethod
    def flush(self) -> str:
        """The text kept back, at the end of the output. Called once."""


def special_token_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids that `skip_special_tokens` leaves out."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return frozenset(tokenizer.all_special_ids)
    return frozenset(token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special)
