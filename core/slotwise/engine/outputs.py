"""Records that leave the engine core, and the results that users see. No torch here: token ids are ints, logprobs are floats.

Those made for every request in every step are msgspec structs, which cost a fifth of a dataclass to make and are not tracked by the
garbage collector: they must never be part of a reference cycle.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec


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


class EngineCoreOutput(msgspec.Struct, kw_only=True, gc=False):
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
    turn_ended: bool = False
    """A session (see `Request.is_session`) finished a turn and waits for more input, or goes on with input it has."""


@dataclass(kw_only=True, slots=True)
class Logprob:
    """One entry of `CompletionOutput.logprobs`."""

    logprob: float
    rank: int | None
    decoded_token: str | None


class CompletionOutput(msgspec.Struct, kw_only=True, gc=False):
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


class RequestOutput(msgspec.Struct, kw_only=True, gc=False, eq=False):
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
    metrics: RequestMetrics | None = None

    def __eq__(self, other: object) -> bool:
        """Equal in everything but `metrics`, which differ from run to run."""
        return isinstance(other, RequestOutput) and all(
            getattr(self, name) == getattr(other, name) for name in self.__struct_fields__ if name != "metrics"
        )

    __hash__ = None  # type: ignore[assignment]
