"""Records that leave the engine core, and the results that users see. No torch here: token ids are ints, logprobs are floats."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class FinishReason(enum.StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(kw_only=True, slots=True)
class TokenLogprobs:
    """Logprobs of one generated position, as the core sends them."""

    token_ids: list[int]
    """The sampled token first, then the most likely ones (the sampled one may come again)."""
    logprobs: list[float]
    rank: int
    """Rank of the sampled token, 1 = most likely."""


@dataclass(kw_only=True, slots=True)
class EngineCoreOutput:
    """What one step gave one request."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: list[TokenLogprobs] | None = None
    """One per new token, if asked for."""
    new_prompt_logprobs: list[TokenLogprobs] | None = None
    """Positions 1 .. num_prompt_tokens - 1 of the prompt, delivered once, with the first output token."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token id that ended it; the output processor puts stop strings here. None for EOS."""
    error: str | None = None
    """With finish_reason `error`: what happened."""
    num_cached_tokens: int = 0


@dataclass(kw_only=True, slots=True)
class Logprob:
    """One entry of `CompletionOutput.logprobs`."""

    logprob: float
    rank: int | None
    decoded_token: str | None


@dataclass(kw_only=True, slots=True)
class CompletionOutput:
    """One of a request's n completions."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    """Per token: id -> entry, the sampled one first."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(kw_only=True, slots=True)
class RequestMetrics:
    """Seconds, on one monotonic clock."""

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None

    @property
    def time_to_first_token(self) -> float | None:
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@dataclass(kw_only=True, slots=True)
class RequestOutput:
    """State of a request: all of it, or what is new, as `SamplingParams.output_kind` says."""

    request_id: str
    """The id the caller gave."""
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    error: str | None = None
    metrics: RequestMetrics | None = field(default=None, compare=False)
