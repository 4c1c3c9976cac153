"""Fields that completions and chat share.

Rules: null is the same as left out; types are strict (no "1" for 1, no 1.0 or true where an integer is meant); ranges are checked by
`SamplingParams`. Fields that nobody knows are ignored, since OpenAI clients send many; fields that are known but not supported are refused
by `unsupported`.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

SAMPLING_FIELDS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "n",
        "min_tokens",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "include_stop_str_in_output",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "bad_words",
        "logit_bias",
        "allowed_token_ids",
        "prompt_logprobs",
        "skip_special_tokens",
    }
)
"""Those that go to `SamplingParams` under their own names."""


class StrictModel(BaseModel):
    """Base of what is read from a client."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class StreamOptions(StrictModel):
    """`stream_options`."""

    include_usage: bool | None = Field(None, description="Send one more chunk at the end, without choices, that has the usage.")
    continuous_usage_stats: bool | None = Field(None, description="With include_usage: the usage so far in every chunk.")


class GenerationRequest(StrictModel):
    """What any request for text may say."""

    model: str | None = Field(None, description="Must be the served model's name, if given.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="Who asks; schedulers may use it to be fair.")

    n: int | None = None
    best_of: int | None = Field(None, description="Only n is possible.")
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = Field(None, description="By default all that the context has left.")
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    priority: int | None = Field(None, description="Smaller is more urgent; for schedulers that look at it.")
    cache_salt: str | None = Field(None, min_length=1, description="Share cached prefixes only with requests of the same salt.")

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def has_continuous_usage(self) -> bool:
        """Whether every chunk has the usage so far."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)
