"""Logprobs as the core sends them -> as users see them.

A masked id's logprob is -inf, as a float; whoever writes JSON replaces it. What this file does not know: how logprobs are computed.
"""

from __future__ import annotations

from collections.abc import Callable

from slotwise.engine.outputs import Logprob, TokenLogprobs


def logprobs_of_position(position: TokenLogprobs, num_logprobs: int, token_text: Callable[[int], str] | None) -> dict[int, Logprob]:
    """Token id -> entry: the sampled (or prompt) token first with its own rank, then the `num_logprobs` most likely ones with ranks 1, 2,
    ...; one entry where the two meet. num_logprobs: -1 = all that were sent. token_text None: entries have no text."""
    num_entries = len(position.token_ids) if num_logprobs == -1 else num_logprobs + 1
    entries: dict[int, Logprob] = {}
    for index, (token_id, logprob) in enumerate(zip(position.token_ids[:num_entries], position.logprobs, strict=False)):
        if token_id not in entries:
            text = None if token_text is None else token_text(token_id)
            entries[token_id] = Logprob(logprob=logprob, rank=index or position.rank, decoded_token=text)
    return entries


class OutputLogprobs:
    """Logprobs of one output, position by position."""

    __slots__ = ("_num_logprobs", "_token_text", "cumulative", "positions")

    def __init__(self, num_logprobs: int, token_text: Callable[[int], str] | None) -> None:
        self._num_logprobs = num_logprobs
        self._token_text = token_text
        self.positions: list[dict[int, Logprob]] = []
        self.cumulative = 0.0
        """Sum of the sampled tokens' logprobs."""

    def append(self, positions: list[TokenLogprobs]) -> None:
        for position in positions:
            self.positions.append(logprobs_of_position(position, self._num_logprobs, self._token_text))
            self.cumulative += position.logprobs[0]


def prompt_logprobs(
    positions: list[TokenLogprobs], num_logprobs: int, token_text: Callable[[int], str] | None
) -> list[dict[int, Logprob] | None]:
    """One entry per prompt token; the first has nothing before it, so None."""
    return [None, *(logprobs_of_position(position, num_logprobs, token_text) for position in positions)]
