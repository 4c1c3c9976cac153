"""Logprobs of /v1/completions: parallel lists, and where each token's text stands in the choice's text.

    "".join(tokens) is the text (as it was before a stop string cut it), and text_offset[i] the number of characters before token i.

A token's text is therefore what it added to the text: tokens that are parts of a character are empty, but for the one that completes it,
and so are special tokens that are not shown. Keys of `top_logprobs` are texts of single tokens; the chosen token's key is its entry in
`tokens`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slotwise.engine.detokenizer import TextDecoder
from slotwise.engine.outputs import CompletionOutput, FinishReason, Logprob
from slotwise_contrib.server.logprobs import LogprobWriter, Positions, json_logprob, token_name


class CompletionLogprobWriter(LogprobWriter):
    """Keeps the place in the text, so that streamed lists joined are the lists of the whole."""

    def __init__(
        self,
        decoder: TextDecoder | None,
        prompt_token_ids: Sequence[int],
        *,
        has_echo: bool,
        skip_special_tokens: bool,
        shows_stop_token: bool,
    ) -> None:
        """shows_stop_token: whether a token that ends the output is part of its text."""
        self._shows_stop_token = shows_stop_token
        self._offset = 0
        self._stream = None
        if decoder is not None:
            self._stream = decoder.stream(() if has_echo else prompt_token_ids, skip_special_tokens=skip_special_tokens)

    def write(self, completion: CompletionOutput, echoed: tuple[Sequence[int], Positions] | None = None) -> dict[str, Any]:
        record: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        if echoed is not None:
            self._append(record, echoed[0], self._texts(echoed[0]), echoed[1])
        self._append(record, completion.token_ids, self._output_texts(completion), completion.logprobs or ())
        return record

    def _append(self, record: dict[str, Any], token_ids: Sequence[int], texts: Sequence[str | None], positions: Positions) -> None:
        for token_id, text, position in zip(token_ids, texts, positions, strict=True):
            name = text if text is not None else f"token_id:{token_id}"
            record["tokens"].append(name)
            record["token_logprobs"].append(None if position is None else json_logprob(position[token_id].logprob))
            record["top_logprobs"].append(None if position is None else _top(token_id, name, position))
            record["text_offset"].append(self._offset)
            self._offset += len(text or "")

    def _texts(self, token_ids: Sequence[int]) -> list[str | None]:
        stream = self._stream
        return [None if stream is None else stream.append([token_id]) for token_id in token_ids]

    def _output_texts(self, completion: CompletionOutput) -> list[str | None]:
        token_ids = completion.token_ids
        if self._stream is None or not completion.finished or not token_ids:
            return self._texts(token_ids)
        ended_by_token = completion.finish_reason == FinishReason.STOP and not isinstance(completion.stop_reason, str)
        if ended_by_token and not self._shows_stop_token:
            texts = self._texts(token_ids[:-1])
            last: str | None = self._stream.flush()
        else:
            *texts, last = self._texts(token_ids)
            last = (last or "") + self._stream.flush()
        return [*texts, last]


def _top(token_id: int, name: str, position: Mapping[int, Logprob]) -> dict[str, float]:
    """Several tokens may have one text (parts of characters); the likeliest keeps the key."""
    top = {name: json_logprob(position[token_id].logprob)}
    for other, entry in sorted(position.items(), key=lambda item: -item[1].logprob):
        if other != token_id:
            top.setdefault(token_name(other, entry), json_logprob(entry.logprob))
    return top
