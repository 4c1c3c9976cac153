"""Streams for tokenizers whose text depends on neighbouring tokens: SentencePiece-like with byte fallback, WordPiece, and others.

A window of the last ids is decoded with the next ones, and what the window's text grows by is the new text:

    ids   ... | context, text known | pending, kept back |
              ^ an ordinary token   ^ ends with one, or is the prompt's end

Pending ids are those of an unfinished run of byte tokens (`<0xE2>`): decoders read a run as a whole, and one bad byte turns all of it into
U+FFFD. So nothing of a run is certain until an ordinary token follows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slotwise.engine.text_stream import TextStream, special_token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_MIN_CONTEXT = 8
_MAX_CONTEXT = 32
_MAX_SPLIT = 8
"""Most ids waited for when the text ends in U+FFFD and the decoder joins bytes outside runs."""


class TokenKinds(dict[int, bool]):
    """Token id -> whether it is ordinary, that is has text and ends a run of bytes; filled on demand.

    Byte tokens, skipped special ones and ids without a token are not.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, skip_special_tokens: bool) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._skipped = special_token_ids(tokenizer) if skip_special_tokens else frozenset()

    def __missing__(self, token_id: int) -> bool:
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        ordinary = self[token_id] = isinstance(token, str) and token_id not in self._skipped and not _BYTE_TOKEN.fullmatch(token)
        return ordinary


class WindowedStream(TextStream):
    """Stream that decodes windows of 8 to 32 ids (more only within a run of bytes)."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        kinds: TokenKinds,
        prompt_token_ids: Sequence[int],
        skip_special_tokens: bool,
        *,
        splits_chars: bool,
    ) -> None:
        self._tokenizer = tokenizer
        self._kinds = kinds
        self._skip_special_tokens = skip_special_tokens
        self._splits_chars = splits_chars
        self._pending: list[int] = []
        self._context, self._context_text = self._window_end(list(prompt_token_ids))

    def append(self, token_ids: Sequence[int]) -> str:
        self._pending.extend(token_ids)
        num_ready = len(self._pending)
        while num_ready and not self._kinds[self._pending[num_ready - 1]]:
            num_ready -= 1
            if num_ready < len(self._pending) - len(token_ids):
                return ""  # The ids before these were waiting already.
        return self._take(num_ready) if num_ready else ""

    def flush(self) -> str:
        return self._take(len(self._pending), is_last=True) if self._pending else ""

    def _take(self, num_ready: int, *, is_last: bool = False) -> str:
        """Moves pending ids into the context; returns their text."""
        window = self._context + self._pending[:num_ready]
        text = self._decode(window)
        if self._splits_chars and not is_last and text.endswith("\ufffd") and num_ready <= _MAX_SPLIT:
            return ""
        known = self._context_text
        # Only a prompt that ends within a character has text that its continuation changes.
        num_known = len(known) if text.startswith(known) else _common_prefix_len(text, known)
        del self._pending[:num_ready]
        if len(window) > _MAX_CONTEXT:
            self._context, self._context_text = self._window_end(window)
        else:
            self._context, self._context_text = window, text
        return text[num_known:]

    def _window_end(self, token_ids: list[int]) -> tuple[list[int], str]:
        """The shortest end of at least _MIN_CONTEXT ids that stands for all of them, and its text: it begins with an ordinary token, so in
        no run, and it has text, so that what decoders strip from the start of a text is not stripped from the ids to come."""
        start = len(token_ids) - _MIN_CONTEXT
        while start > 0:
            if self._kinds[token_ids[start]]:
                text = self._decode(token_ids[start:])
                if text:
                    return token_ids[start:], text
            start -= 1
        return token_ids, self._decode(token_ids)

    def _decode(self, token_ids: list[int]) -> str:
        return str(
            self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens, clean_up_tokenization_spaces=False)
            if token_ids
            else ""
        )


def _common_prefix_len(first: str, second: str) -> int:
    differences = (index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    return next(differences, min(len(first), len(second)))
