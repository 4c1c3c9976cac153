"""Records that leave the engine core, and the results that users see. No torch here: token ids are ints, logprobs are floats.

Those made for every request in every step are msgspec structs, which cost a fifth of a dataclass to make and are not tracked by the
garbage collector: they must never be part of a reference cycle.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import msgspec

_MOST_EXPONENT = 709.0
"""exp of more is no float."""


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
    """Positions 1 .. num_prompt_tokens - 1 of the prompt, delivered once, with the first output token, or the end if there is none."""
    embedding: list[float] | None = None
    """The prompt's vector, if that was asked for."""
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
    embedding: list[float] | None = None
    """The prompt's vector, of a request for one."""
    error: str | None = None
    metrics: RequestMetrics | None = None

    def __eq__(self, other: object) -> bool:
        """Equal in everything but `metrics`, which differ from run to run."""
        return isinstance(other, RequestOutput) and all(
            getattr(self, name) == getattr(other, name) for name in self.__struct_fields__ if name != "metrics"
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingOutput:
    """The vector of a prompt."""

    embedding: list[float]
    """Empty if `EmbeddingRequestOutput.error` says why there is none."""

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingRequestOutput:
    """Result of a request for a prompt's vector."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: EmbeddingOutput
    num_cached_tokens: int = 0
    error: str | None = None
    metrics: RequestMetrics | None = None
    finished: bool = True

    @classmethod
    def of(cls, output: RequestOutput) -> EmbeddingRequestOutput:
        """output: the last one of a request with pooling."""
        return cls(
            request_id=output.request_id,
            prompt=output.prompt,
            prompt_token_ids=output.prompt_token_ids,
            outputs=EmbeddingOutput(embedding=output.embedding or []),
            num_cached_tokens=output.num_cached_tokens,
            error=output.error,
            metrics=output.metrics,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoringOutput:
    """How alike two texts are."""

    score: float
    """Cosine of the angle between their vectors, -1 .. 1; NaN if `ScoringRequestOutput.error` says why there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoringRequestOutput:
    """Result of one pair of `LLM.score`."""

    outputs: ScoringOutput
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceScore:
    """How likely a model holds a sequence, or the end of one, to be: result of `LLM.log_likelihood`."""

    token_ids: list[int]
    """What was scored."""
    token_logprobs: list[float]
    """Natural logarithms, given all before."""
    ranks: list[int]
    """1 = the model's most likely id at that place."""
    error: str | None = None
    """Why there are no values."""

    @property
    def log_likelihood(self) -> float:
        """Sum of `token_logprobs`."""
        return math.fsum(self.token_logprobs)

    @property
    def perplexity(self) -> float:
        """exp of minus the mean; inf where a token's probability is 0."""
        if not self.token_logprobs:
            return math.nan
        mean = -self.log_likelihood / len(self.token_logprobs)
        return math.exp(mean) if mean < _MOST_EXPONENT else math.inf

    @property
    def is_greedy(self) -> bool:
        """Greedy sampling would have given these tokens."""
        return all(rank == 1 for rank in self.ranks)
