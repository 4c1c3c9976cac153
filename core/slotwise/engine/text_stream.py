"""`TextStream`: what turns one request's token ids into text, whatever the tokenizer; and what a tokenizer says of single ids.

What this file does not know: how any tokenizer decodes, stop strings, requests.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


REPLACEMENT = "\ufffd"
"""What a decode shows for bytes that are no character."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NUM_IDS = 2**32
"""The `tokenizers` library takes 32 bit ids and raises OverflowError for others."""


class TextStream(ABC):
    """Text of one output. Pieces once given never change; text that a later token could still change is kept back.

    All pieces together are what the decode of prompt + output has more than the decode of the prompt. Where the prompt ends within a
    character:

        prompt ends     the output    belongs to the output
        in a character  completes it  that character, and what follows
        in a character  breaks it     what follows; the replacement character (U+FFFD) is the prompt's
        in a character  is empty      nothing
        with a whole    makes it      replacement characters for the output's own bytes
        run of bytes    malformed

    So a piece has U+FFFD only where the decode of prompt + output has it, and never for the prompt's own bytes.
    """

    @abstractmethod
    def append(self, token_ids: Sequence[int]) -> str:
        """Takes the next ids, in any grouping; returns the text that is now certain, maybe empty. Amortised O(1) per id. Any integer is
        taken: ids without a token, negative and huge ones too, have no text."""

    @abstractmethod
    def flush(self) -> str:
        """The text kept back, at the end of the output, or of a turn, after which ids may follow."""


def special_token_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids that `skip_special_tokens` leaves out."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return frozenset(tokenizer.all_special_ids)
    return frozenset(token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special)


def token_of(tokenizer: PreTrainedTokenizerBase, token_id: int) -> str | None:
    """The token as the vocabulary writes it; None for integers that name none: unused, beyond the vocabulary, negative."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not 0 <= token_id < (len(tokenizer) if backend is None else _NUM_IDS):
        return None
    token = tokenizer.convert_ids_to_tokens(token_id) if backend is None else backend.id_to_token(token_id)
    return token if isinstance(token, str) else None


class TokenKind(Enum):
    """What an id does to its neighbours' text."""

    WORD = "has text of its own and ends a run of bytes"
    BYTE = "part of a run of bytes"
    SILENT = "no text: no such token, or a special one that is skipped"


class TokenKinds(dict[int, TokenKind]):
    """Token id -> its kind; filled on demand."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, skip_special_tokens: bool) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._skipped = special_token_ids(tokenizer) if skip_special_tokens else frozenset()

    def __missing__(self, token_id: int) -> TokenKind:
        kind = self[token_id] = self._kind(token_id)
        return kind

    def _kind(self, token_id: int) -> TokenKind:
        token = token_of(self._tokenizer, token_id)
        if token is None or token_id in self._skipped:
            return TokenKind.SILENT
        return TokenKind.BYTE if _BYTE_TOKEN.fullmatch(token) else TokenKind.WORD

    def byte_of(self, token_id: int) -> int:
        """The value, 0 to 255, of an id of kind BYTE."""
        match = _BYTE_TOKEN.fullmatch(token_of(self._tokenizer, token_id) or "")
        assert match is not None
        return int(match[1], 16)
