"""`SamplingParams`: what a caller asks of one request, checked once when it is made. Names follow vLLM's public API."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field, fields
from typing import Any

from slotwise.errors import InvalidRequestError

MIN_TEMPERATURE = 0.01
"""Positive temperatures below it are raised to it: logits / T stays finite in every dtype, and 0 alone means greedy."""
MAX_LOGPROBS = 20


class OutputKind(enum.StrEnum):
    """What each `RequestOutput` of a request carries."""

    CUMULATIVE = "cumulative"
    DELTA = "delta"
    FINAL_ONLY = "final_only"


@dataclass(kw_only=True, slots=True)
class SamplingParams:
    """Parameters of one request. Raises InvalidRequestError naming the field.

    temperature: 0 is greedy, and then top_p, top_k and min_p are without effect. top_k: 0 or -1 = off. max_tokens None = up to the context's
    end. logprobs: number of most likely alternatives per output token (None = none, -1 = all). seed -1 or None = none.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    bad_words: list[str] = field(default_factory=list)
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    output_kind: OutputKind = OutputKind.CUMULATIVE
    stream_interval: int = 1
