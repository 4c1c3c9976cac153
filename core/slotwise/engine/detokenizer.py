"""Token ids -> text, token by token: the joined pieces of a stream equal the decode of all its ids.

`TextDecoder` is made once per tokenizer; it gives one `TextStream` per request. Two kinds: byte-level tokenizers (GPT-2, Llama 3, Qwen,
SmolLM) are a table of bytes and an incremental UTF-8 decoder; all others decode a short window of ids, in `windowed_stream`. Text is that
of the tokenizer's `decode` without `clean_up_tokenization_spaces` and without blanks around special tokens. What this file does not know:
stop strings, requests, logprobs.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slotwise.engine.text_stream import REPLACEMENT, TextStream, TokenKinds, special_token_ids, token_of
from slotwise.engine.windowed_stream import WindowedStream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LONGEST_CHAR_BYTES = 4
_REPLACEMENT_BYTES = REPLACEMENT.encode()


class TextDecoder:
    """What detokenization needs to know of one tokenizer. Cheap to make; tables fill as ids occur."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        decoder = _decoder_description(tokenizer)
        self._is_byte_level = _is_byte_level(decoder)
        self._splits_chars = "ByteLevel" in json.dumps(decoder)
        self._bytes = {skip: ByteTable(tokenizer, skip) for skip in (False, True)}
        self._kinds = {skip: TokenKinds(tokenizer, skip) for skip in (False, True)}
        self._texts: dict[int, str] = {}
        self._anchor: tuple[list[int], str] | None = None

    def stream(self, prompt_token_ids: Sequence[int] = (), *, skip_special_tokens: bool = True) -> TextStream:
        """A stream for the output that follows the prompt. The prompt's own text is not part of it, but its end counts: a blank between
        words is kept, and a character the prompt left unfinished comes out when the output completes it (see `TextStream`)."""
        if self._is_byte_level:
            return ByteLevelStream(self._bytes[skip_special_tokens], prompt_token_ids)
        return WindowedStream(
            self._tokenizer, self._kinds[skip_special_tokens], prompt_token_ids, skip_special_tokens, splits_chars=self._splits_chars
        )

    def token_text(self, token_id: int) -> str:
        """The text of one id as it stands within a sentence, special tokens shown; U+FFFD for parts of a character."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self._token_text(token_id)
        return text

    def _token_text(self, token_id: int) -> str:
        if self._is_byte_level:
            return self._bytes[False][token_id].decode("utf-8", "replace")
        if token_of(self._tokenizer, token_id) is None:
            return ""
        if self._anchor is None:
            # Many decoders strip the blank of a text's first token, so the token is shown behind another.
            ids = self._tokenizer.encode("a", add_special_tokens=False)
            self._anchor = (list(ids), self._decode(ids))
        ids, anchor_text = self._anchor
        return self._decode([*ids, token_id]).removeprefix(anchor_text)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


class ByteLevelStream(TextStream):
    """Stream of a byte-level tokenizer: the text is the UTF-8 of all bytes, malformed parts replaced. A dictionary look-up per token."""

    def __init__(self, table: ByteTable, prompt_token_ids: Sequence[int]) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(self._end_of(prompt_token_ids))
        self._begun: bytes = self._decoder.getstate()[0]
        """The character that the prompt left unfinished, with the output's bytes so far, until it is known what becomes of it."""

    def append(self, token_ids: Sequence[int]) -> str:
        table = self._table
        return self._next_text(b"".join([table[token_id] for token_id in token_ids]))

    def flush(self) -> str:
        return self._next_text(b"", is_last=True)

    def _next_text(self, data: bytes, *, is_last: bool = False) -> str:
        text = self._decoder.decode(data, is_last)
        if not self._begun:
            return text
        begun = self._begun + data
        self._begun = b"" if text or is_last else begun
        # A replacement character stands for the prompt's bytes, unless both together spell that very character.
        return text if begun.startswith(_REPLACEMENT_BYTES) else text.removeprefix(REPLACEMENT)

    def _end_of(self, token_ids: Sequence[int]) -> bytes:
        """The bytes that an unfinished last character can lie in."""
        end = b""
        for token_id in reversed(token_ids):
            end = self._table[token_id] + end
            if len(end) >= _LONGEST_CHAR_BYTES:
                break
        return end


class ByteTable(dict[int, bytes]):
    """Token id -> its bytes; filled on demand. Ids without a token, and special ones where they are skipped, have none."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, skip_special_tokens: bool) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._skipped = special_token_ids(tokenizer) if skip_special_tokens else frozenset()

    def __missing__(self, token_id: int) -> bytes:
        value = self[token_id] = b"" if token_id in self._skipped else self._bytes(token_id)
        return value

    def _bytes(self, token_id: int) -> bytes:
        token = token_of(self._tokenizer, token_id)
        if token is None:
            return b""
        try:
            return bytes([_BYTE_OF_CHAR[char] for char in token])
        except KeyError:  # An added token that is plain text, not written in the byte alphabet.
            return token.encode()


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level vocabularies write bytes with.

    Source: GPT-2 (Radford et al., 2019), section 2.2, and its published encoder: printable Latin-1 stands for itself, the rest is moved to
    U+0100 and up in order.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_alphabet()


def _decoder_description(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The decoder of a `tokenizers` tokenizer as its JSON says; empty for tokenizers written in Python."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return {}
    description: dict[str, Any] = json.loads(decoder.__getstate__())
    return description


def _is_byte_level(decoder: dict[str, Any]) -> bool:
    if decoder.get("type") == "Sequence":
        parts = decoder.get("decoders", [])
        return len(parts) == 1 and _is_byte_level(parts[0])
    return decoder.get("type") == "ByteLevel"
