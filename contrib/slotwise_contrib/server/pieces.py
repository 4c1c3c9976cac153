"""`Piece`: what is new of one choice, ready to be written, the same for whole answers and for streams.

What this file does not know: completions from chat, JSON, HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slotwise.engine.outputs import CompletionOutput, RequestOutput
from slotwise_contrib.server.logprobs import LogprobWriter, Positions, prompt_logprobs_record


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Part of a choice; a whole answer is one piece per choice."""

    index: int
    text: str
    is_first: bool
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether a stream can leave it out."""
        return not (self.text or self.is_first or self.finish_reason or (self.logprobs and any(self.logprobs.values())))


class PieceMaker:
    """Makes the pieces of one prompt's choices. Pieces that begin with the prompt's logprobs wait until these have come: they come with the
    first completion's tokens only."""

    def __init__(
        self,
        *,
        first_index: int,
        has_echo: bool,
        needs_prompt_logprobs: bool,
        shows_prompt_logprobs: bool,
        writer: Callable[[Sequence[int]], LogprobWriter] | None,
        prompt_text: Callable[[Sequence[int]], str],
    ) -> None:
        """first_index: index of the prompt's first choice. writer: makes a choice's logprob writer from the prompt's ids; None = no
        logprobs asked for. prompt_text: the text of a prompt that came as ids."""
        self._first_index = first_index
        self._has_echo = has_echo
        self._waits = needs_prompt_logprobs
        self._shows_prompt_logprobs = shows_prompt_logprobs
        self._writer = writer
        self._prompt_text = prompt_text
        self._writers: dict[int, LogprobWriter] = {}
        self._begun: set[int] = set()
        self._held: list[CompletionOutput] = []
        self._prompt_logprobs: Positions | None = None

    def take(self, output: RequestOutput) -> list[Piece]:
        """The pieces of an output whose completions carry what is new."""
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs
        if self._waits and self._prompt_logprobs is None:
            self._held += output.outputs
            return []
        completions, self._held = [*self._held, *output.outputs], []
        return [self._piece(completion, output) for completion in completions]

    def _piece(self, completion: CompletionOutput, output: RequestOutput) -> Piece:
        is_first = completion.index not in self._begun
        self._begun.add(completion.index)
        text = completion.text
        if is_first and self._has_echo:
            text = (self._prompt_text(output.prompt_token_ids) if output.prompt is None else output.prompt) + text
        prompt_logprobs = None
        if is_first and self._shows_prompt_logprobs and self._prompt_logprobs is not None:
            prompt_logprobs = prompt_logprobs_record(self._prompt_logprobs)
        return Piece(
            index=self._first_index + completion.index,
            text=text,
            is_first=is_first,
            logprobs=self._logprobs(completion, output, is_first),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            prompt_logprobs=prompt_logprobs,
        )

    def _logprobs(self, completion: CompletionOutput, output: RequestOutput, is_first: bool) -> dict[str, Any] | None:
        if self._writer is None:
            return None
        if is_first:
            self._writers[completion.index] = self._writer(output.prompt_token_ids)
        echoed = None
        if is_first and self._has_echo and self._prompt_logprobs is not None:
            echoed = (output.prompt_token_ids, self._prompt_logprobs)
        return self._writers[completion.index].write(completion, echoed)
