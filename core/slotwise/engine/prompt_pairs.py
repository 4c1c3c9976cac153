"""Prompts that are looked at, not continued: pairs of texts, continuations and their scores. What this file does not know: engines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from slotwise.engine.outputs import EmbeddingRequestOutput, RequestOutput, ScoringOutput, ScoringRequestOutput, SequenceScore
from slotwise.errors import InvalidRequestError

Encode = Callable[[str], list[int]]
"""Text -> token ids, special tokens added as for a prompt."""


def join_continuation(prompt: str | Sequence[int], continuation: str | Sequence[int], encode: Encode) -> tuple[list[int], int]:
    """(all token ids, how many of them are the prompt's). A token that spans the border of two texts counts as the continuation's."""
    if isinstance(prompt, str) != isinstance(continuation, str):
        raise InvalidRequestError("A prompt and its continuation must both be texts or both be token ids.", param="continuations")
    if isinstance(prompt, str) and isinstance(continuation, str):
        before, ids = encode(prompt), encode(prompt + continuation)
        num_prompt = next((place for place, pair in enumerate(zip(before, ids, strict=False)) if pair[0] != pair[1]), len(before))
        num_prompt = min(num_prompt, len(ids))
    else:
        ids, num_prompt = [*prompt, *continuation], len(prompt)
    if num_prompt == len(ids):
        raise InvalidRequestError("A continuation is empty: it has no token to score.", param="continuations")
    if num_prompt == 0:
        raise InvalidRequestError(
            "A prompt is empty: the first token has nothing before it that it could be scored after; give at least one token.",
            param="prompts",
        )
    return ids, num_prompt


def sequence_score(output: RequestOutput, num_context: int) -> SequenceScore:
    """output: of a request with prompt_logprobs. num_context: leading tokens that are not scored, at least 1."""
    ids = output.prompt_token_ids[num_context:]
    if output.prompt_logprobs is None:
        return SequenceScore(token_ids=ids, token_logprobs=[], ranks=[], error=output.error or "the request gave no logprobs")
    entries = [(places or {})[token_id] for token_id, places in zip(ids, output.prompt_logprobs[num_context:], strict=True)]
    return SequenceScore(
        token_ids=ids,
        token_logprobs=[entry.logprob for entry in entries],
        ranks=[entry.rank or 0 for entry in entries],
        error=output.error,
    )


def pair_up(first: Sequence[object], second: Sequence[object]) -> list[tuple[int, int]]:
    """Places of the pairs: one text against each of many, or text by text. Raises InvalidRequestError."""
    if len(first) == 1:
        return [(0, place) for place in range(len(second))]
    if len(first) != len(second):
        raise InvalidRequestError(
            f"There are {len(first)} first and {len(second)} second texts; give one first text, or as many of each.", param="data_2"
        )
    return [(place, place) for place in range(len(first))]


def similarity(first: EmbeddingRequestOutput, second: EmbeddingRequestOutput) -> ScoringRequestOutput:
    """Cosine similarity of two vectors of length 1."""
    error = first.error or second.error
    pairs = zip(first.outputs.embedding, second.outputs.embedding, strict=True) if error is None else ()
    score = math.nan if error is not None else math.fsum(a * b for a, b in pairs)
    return ScoringRequestOutput(outputs=ScoringOutput(score=score), error=error)
