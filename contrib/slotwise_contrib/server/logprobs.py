"""Logprobs as JSON: one rule for values that JSON has no number for, and vLLM's `prompt_logprobs`.

What this file does not know: the two OpenAI forms, which are in `completion_logprobs` and `chat_logprobs`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from slotwise.engine.outputs import CompletionOutput, Logprob

FLOOR = -9999.0
"""Stands for minus infinity, a token that was masked, in every field; the number OpenAI documents for very unlikely tokens."""

Positions = Sequence[Mapping[int, Logprob] | None]
"""Per token: id -> entry, the token itself first; None where nothing came before."""


class LogprobWriter(ABC):
    """Writes the logprobs of one choice, piece by piece."""

    @abstractmethod
    def write(self, completion: CompletionOutput, echoed: tuple[Sequence[int], Positions] | None = None) -> dict[str, Any]:
        """The `logprobs` object of what is new. echoed: ids and positions of the prompt, if the choice begins with it."""


def json_logprob(value: float) -> float:
    """A finite number."""
    return value if math.isfinite(value) else FLOOR


def token_name(token_id: int, entry: Logprob) -> str:
    """A token's text, as it stands in a sentence; its id where there is no tokenizer."""
    return f"token_id:{token_id}" if entry.decoded_token is None else entry.decoded_token


def prompt_logprobs_record(positions: Positions) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: per prompt token, id -> logprob, rank and text."""
    return [None if position is None else {str(token_id): _entry(entry) for token_id, entry in position.items()} for position in positions]


def _entry(entry: Logprob) -> dict[str, Any]:
    return {"logprob": json_logprob(entry.logprob), "rank": entry.rank, "decoded_token": entry.decoded_token}
