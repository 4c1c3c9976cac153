"""Streams for tokenizers whose text depends on neighbouring tokens: SentencePiece-like with byte fallback, WordPiece, and others.

A window of the last ids is decoded with the next ones, and what the window's text grows by is the new text:

    ids   ... | context, text known | pending, kept back |
              ^ a word              ^ ends with one, or is the prompt's end

Pending ids are those of an unfinished run of byte tokens (`<0xE2>`): decoders read a run as a whole, and one bad byte turns all of it into
U+FFFD. So nothing of a run is certain until a word follows. What this file does not know: how a decoder works otherwise; stop strings.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slotwise.engine.text_stream import REPLACEMENT, TextStream, TokenKind, TokenKinds

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MIN_CONTEXT = 8
_MAX_CONTEXT = 32
_MAX_UNFINISHED_CONTEXT = 128
"""Ids after which a window is cut even if its text ends with U+FFFD, as endless garbage does."""


class WindowedStream(TextStream):
    """Stream that decodes windows of 8 to 32 ids (more only within a run of bytes). Silent ids are dropped as they come."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        kinds: TokenKinds,
        prompt_token_ids: Sequence[int],
        skip_special_tokens: bool,
        *,
        splits_chars: bool,
    ) -> None:
        """splits_chars: whether words too may be parts of characters, so that a text's last U+FFFD is never certain."""
        self._tokenizer = tokenizer
        self._kinds = kinds
        self._skip_special_tokens = skip_special_tokens
        self._splits_chars = splits_chars
        self._pending: list[int] = []
        self._is_holding = False
        """Whether the context's last U+FFFD is kept back."""
        self._context, self._known = self._window_end(
            [token_id for token_id in prompt_token_ids if kinds[token_id] is not TokenKind.SILENT]
        )

    def append(self, token_ids: Sequence[int]) -> str:
        num_ready = 0
        for token_id in token_ids:
            kind = self._kinds[token_id]
            if kind is not TokenKind.SILENT:
                self._pending.append(token_id)
                if kind is TokenKind.WORD:
                    num_ready = len(self._pending)
        return self._take(num_ready) if num_ready else ""

    def flush(self) -> str:
        return self._take(len(self._pending), is_last=True) if self._pending or self._is_holding else ""

    def _take(self, num_ready: int, *, is_last: bool = False) -> str:
        """Moves pending ids into the context; returns their text."""
        new_ids = self._pending[:num_ready]
        window = self._context + new_ids
        text = self._decode(window)
        num_known = self._num_known(text, new_ids)
        self._is_holding = self._splits_chars and not is_last and text.endswith(REPLACEMENT)
        end = len(text) - self._is_holding
        piece = text[num_known:end]
        del self._pending[:num_ready]
        if len(window) > (_MAX_UNFINISHED_CONTEXT if self._is_holding else _MAX_CONTEXT):
            self._context, self._known = self._window_end(window)
            self._known = self._known[: len(self._known) - self._is_holding]
        else:
            self._context, self._known = window, text[: max(num_known, end)]
        return piece

    def _num_known(self, text: str, new_ids: Sequence[int]) -> int:
        """How much of the window's text is not new: all that was known, unless the new ids changed its end."""
        known = self._known_before(new_ids)
        if text.startswith(known):
            return len(known)
        return _common_prefix_len(text, self._known)

    def _known_before(self, new_ids: Sequence[int]) -> str:
        """What the known text is in a decode with the new ids. Only a run that the prompt (or a flush) cut can become another text."""
        num_old = self._num_last_bytes(self._context)
        num_new = next((count for count, token_id in enumerate(new_ids) if not self._is_byte(token_id)), len(new_ids))
        if not num_old or not num_new:
            return self._known
        old = self._bytes_of(self._context[-num_old:])
        if _is_utf8(old + self._bytes_of(new_ids[:num_new])):
            num_unfinished = _num_unfinished(old)
            return self._decode(self._context[:-num_unfinished]) if num_unfinished else self._known
        return self._decode(self._context[:-num_old]) + REPLACEMENT * num_old

    def _num_last_bytes(self, token_ids: Sequence[int]) -> int:
        return next((count for count, token_id in enumerate(reversed(token_ids)) if not self._is_byte(token_id)), len(token_ids))

    def _is_byte(self, token_id: int) -> bool:
        return self._kinds[token_id] is TokenKind.BYTE

    def _bytes_of(self, token_ids: Sequence[int]) -> bytes:
        return bytes(self._kinds.byte_of(token_id) for token_id in token_ids)

    def _window_end(self, token_ids: list[int]) -> tuple[list[int], str]:
        """The shortest end of at least _MIN_CONTEXT ids that stands for all of them, and its text: it begins with a word, so in no run, and
        it has text, so that what decoders strip from the start of a text is not stripped from the ids to come."""
        for start in range(len(token_ids) - _MIN_CONTEXT, 0, -1):
            if self._kinds[token_ids[start]] is TokenKind.WORD:
                text = self._decode(token_ids[start:])
                if text:
                    return token_ids[start:], text
        return token_ids, self._decode(token_ids)

    def _decode(self, token_ids: list[int]) -> str:
        if not token_ids:
            return ""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens, clean_up_tokenization_spaces=False))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _num_unfinished(start: bytes) -> int:
    """How many bytes at the end are part of a character that is not complete; `start` begins valid UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    decoder.decode(start)
    unfinished: bytes = decoder.getstate()[0]
    return len(unfinished)


def _common_prefix_len(first: str, second: str) -> int:
    differences = (index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    return next(differences, min(len(first), len(second)))
