"""Logprobs of /v1/chat/completions: a list of tokens, each with its alternatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slotwise.engine.outputs import CompletionOutput, Logprob
from slotwise_contrib.server.logprobs import LogprobWriter, Positions, json_logprob, token_name


class ChatLogprobWriter(LogprobWriter):
    """Has no memory: every token stands for itself."""

    def __init__(self, num_top: int) -> None:
        """num_top: alternatives per token, -1 = all."""
        self._num_top = num_top

    def write(self, completion: CompletionOutput, echoed: tuple[Sequence[int], Positions] | None = None) -> dict[str, Any]:
        return {"content": [self._token(position) for position in completion.logprobs or ()]}

    def _token(self, position: Mapping[int, Logprob]) -> dict[str, Any]:
        chosen = next(iter(position.items()))
        likeliest = sorted(position.items(), key=lambda item: -item[1].logprob)
        top = likeliest if self._num_top == -1 else likeliest[: self._num_top]
        return {**_record(*chosen), "top_logprobs": [_record(*item) for item in top]}


def _record(token_id: int, entry: Logprob) -> dict[str, Any]:
    """`bytes` is null for tokens that are no whole characters, whose bytes their text does not tell."""
    name = token_name(token_id, entry)
    return {"token": name, "logprob": json_logprob(entry.logprob), "bytes": None if "\ufffd" in name else list(name.encode())}
