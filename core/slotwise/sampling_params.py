"""`SamplingParams`: what a caller asks of one request, checked and put into normal form once, when it is made.

Names follow vLLM's public API. What this file does not know: the vocabulary, the tokenizer and the limits of an engine; what depends on
those (ids out of range, most logprobs allowed, room left in the context) is checked by the input processor.
"""

from __future__ import annotations

import copy
import enum
import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slotwise.errors import InvalidRequestError
from slotwise.interfaces.sampler import GREEDY_EPS
from slotwise.structured_outputs import StructuredOutputsParams

MIN_TEMPERATURE = 0.01
"""Positive temperatures below it are raised to it, except those below `GREEDY_EPS`, which mean greedy: a caller who writes 1e-12 wants no
randomness at all."""
MAX_TEMPERATURE = 2.0
MIN_REPETITION_PENALTY = 1e-6
"""Logits are divided by it and must stay finite."""
MAX_LOGIT_BIAS = 100.0
"""Logit biases are clamped to -100 .. 100."""
MAX_N = 1024
MAX_SEED = 2**64 - 1
"""Seeds are the 64-bit numbers a generator takes, signed or not: -2**63 .. 2**64 - 1, where -1 means none."""


class OutputKind(enum.StrEnum):
    """What each `RequestOutput` of a request carries."""

    CUMULATIVE = "cumulative"
    DELTA = "delta"
    FINAL_ONLY = "final_only"


@dataclass(kw_only=True, slots=True)
class SamplingParams:
    """Parameters of one request. Raises InvalidRequestError whose `param` names the field.

    After construction every field is in normal form: lists are copies, `stop=None` and `stop="x"` have become lists, numbers are int or
    float, and switched-off parameters have one spelling (top_k 0, seed None).

    temperature: 0 .. 2; 0, or less than 1e-5, is greedy and then top_p, top_k and min_p are without effect and n must be 1; others below
    0.01 are raised to 0.01. top_k: 0 or -1 = off. max_tokens None = up to the context's end; 0 = nothing is
    generated, the prompt alone is computed (for prompt_logprobs, or to fill the prefix cache). logprobs: number of most likely alternatives
    per output token (None = none, 0 = the sampled token's only, -1 = the whole vocabulary). seed None or -1 = none. logit_bias: token id ->
    number, clamped to -100 .. 100; ids may be decimal strings, as JSON has them. min_tokens: that many tokens come before EOS, a stop id or
    a stop string may end the request. structured_outputs: the form the output must have; it ends the request when it is complete, also with
    ignore_eos. thinking_token_budget: tokens between the markers of the model's thoughts, after which their end is forced. extra_args: for
    logits processors that are not built in, by the names they read. spaces_between_special_tokens is accepted and without effect: text
    never gets blanks of ours.
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
    structured_outputs: StructuredOutputsParams | None = None
    thinking_token_budget: int | None = None
    extra_args: dict[str, Any] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    output_kind: OutputKind = OutputKind.CUMULATIVE
    stream_interval: int = 1

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Put every field into normal form. Raises InvalidRequestError.

        Called again by the input processor, since fields can be set after construction.
        """
        self._check_numbers()
        self._check_counts()
        self._check_tokens_and_text()
        self._check_flags()
        self._check_together()

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def heeds_eos(self) -> bool:
        """Whether EOS ends the output; a complete structured output always does."""
        return not self.ignore_eos or self.structured_outputs is not None

    def clone(self) -> SamplingParams:
        """A copy that shares nothing mutable with this one. Not checked again: it is already in normal form."""
        return copy.deepcopy(self)

    def _check_numbers(self) -> None:
        self.temperature = _number("temperature", self.temperature, low=0.0, high=MAX_TEMPERATURE)
        self.top_p = _number("top_p", self.top_p, low=0.0, high=1.0, low_included=False)
        self.min_p = _number("min_p", self.min_p, low=0.0, high=1.0)
        self.presence_penalty = _number("presence_penalty", self.presence_penalty, low=-2.0, high=2.0)
        self.frequency_penalty = _number("frequency_penalty", self.frequency_penalty, low=-2.0, high=2.0)
        self.repetition_penalty = _number("repetition_penalty", self.repetition_penalty, low=MIN_REPETITION_PENALTY)

    def _check_counts(self) -> None:
        self.n = _integer("n", self.n, low=1, high=MAX_N)
        self.top_k = max(_integer("top_k", self.top_k, low=-1), 0)
        self.min_tokens = _integer("min_tokens", self.min_tokens, low=0)
        self.stream_interval = _integer("stream_interval", self.stream_interval, low=1)
        if self.max_tokens is not None:
            self.max_tokens = _integer("max_tokens", self.max_tokens, low=0)
        if self.logprobs is not None:
            self.logprobs = _integer("logprobs", self.logprobs, low=-1)
        if self.prompt_logprobs is not None:
            self.prompt_logprobs = _integer("prompt_logprobs", self.prompt_logprobs, low=-1)
        if self.thinking_token_budget is not None:
            self.thinking_token_budget = _integer("thinking_token_budget", self.thinking_token_budget, low=0)
        if self.seed is not None:
            seed = _integer("seed", self.seed, low=-(2**63), high=MAX_SEED)
            self.seed = None if seed == -1 else seed

    def _check_tokens_and_text(self) -> None:
        self.stop = _strings("stop", self.stop)
        self.bad_words = _strings("bad_words", self.bad_words)
        self.stop_token_ids = _token_ids("stop_token_ids", self.stop_token_ids)
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = _token_ids("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise InvalidRequestError(
                    "allowed_token_ids is empty, so no token could be sampled; give at least one id, or None to allow all.",
                    param="allowed_token_ids",
                )
        self.logit_bias = _logit_bias(self.logit_bias)
        self.structured_outputs = _structured_outputs(self.structured_outputs)
        args = self.extra_args
        if args is not None and not (isinstance(args, Mapping) and all(isinstance(key, str) for key in args)):
            raise InvalidRequestError(f"extra_args must map names to values, got {_shown(self.extra_args)}.", param="extra_args")

    def _check_flags(self) -> None:
        for name in ("ignore_eos", "include_stop_str_in_output", "detokenize", "skip_special_tokens", "spaces_between_special_tokens"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise InvalidRequestError(f"{name} must be true or false, got {_shown(value)}.", param=name)
        try:
            self.output_kind = OutputKind(self.output_kind)
        except ValueError as error:
            kinds = ", ".join(OutputKind)
            raise InvalidRequestError(
                f"output_kind must be one of {kinds}, got {_shown(self.output_kind)}.", param="output_kind"
            ) from error

    def _check_together(self) -> None:
        if self.temperature < GREEDY_EPS:
            self.temperature, self.top_p, self.top_k, self.min_p = 0.0, 1.0, 0, 0.0
            if self.n > 1:
                raise InvalidRequestError(
                    f"n is {self.n} but greedy sampling (temperature 0) would give {self.n} equal completions; ask for n=1 or for a "
                    f"temperature of at least {MIN_TEMPERATURE}.",
                    param="n",
                )
        self.temperature = max(self.temperature, MIN_TEMPERATURE) if self.temperature else 0.0
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}.", param="min_tokens"
            )
        if self.stop and not self.detokenize:
            raise InvalidRequestError(
                "stop needs the text of the output, but detokenize is false; set detokenize=True or use stop_token_ids.", param="stop"
            )


def _shown(value: Any) -> str:
    """A value as an error message shows it: short, whatever the caller sent."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _number(name: str, value: Any, *, low: float, high: float = math.inf, low_included: bool = True) -> float:
    """`value` as a finite float within the range. Comparisons are written so that NaN fails them."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidRequestError(f"{name} must be a number, got {_shown(value)}.", param=name)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    above = number >= low if low_included else number > low
    if math.isfinite(number) and above and number <= high:
        return number
    bounds = f"{'at least' if low_included else 'above'} {low:g}" + (f" and at most {high:g}" if high != math.inf else "")
    raise InvalidRequestError(f"{name} must be a finite number {bounds}, got {_shown(value)}.", param=name)


def _integer(name: str, value: Any, *, low: int, high: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InvalidRequestError(f"{name} must be an integer, got {_shown(value)}.", param=name)
    number = int(value)
    if number < low or (high is not None and number > high):
        bounds = f"at least {low}" + ("" if high is None else f" and at most {high}")
        raise InvalidRequestError(f"{name} must be {bounds}, got {_shown(number)}.", param=name)
    return number


def _strings(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    items: list[Any] = [value] if isinstance(value, str) else _items(name, value, "strings")
    for item in items:
        if not isinstance(item, str) or not item:
            raise InvalidRequestError(f"{name} must hold non-empty strings, got {_shown(item)}.", param=name)
        try:
            item.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"{name} holds text that is not valid: {error}. Replace lone surrogates.", param=name) from error
    return items


def _token_ids(name: str, value: Any) -> list[int]:
    if value is None:
        return []
    return [_integer(name, item, low=0) for item in _items(name, value, "token ids")]


def _items(name: str, value: Any, what: str) -> list[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidRequestError(f"{name} must be a list of {what}, got {_shown(value)}.", param=name)
    return list(value)


def _logit_bias(value: Any) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidRequestError(f"logit_bias must map token ids to numbers, got {_shown(value)}.", param="logit_bias")
    biases = {}
    for key, bias in value.items():
        # JSON objects have string keys; only plain ASCII digits are taken for a number.
        token_id = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20 else key
        number = _number("logit_bias", bias, low=-math.inf)
        biases[_integer("logit_bias", token_id, low=0)] = min(max(number, -MAX_LOGIT_BIAS), MAX_LOGIT_BIAS)
    return biases or None


def _structured_outputs(value: Any) -> StructuredOutputsParams | None:
    if isinstance(value, StructuredOutputsParams):
        value.check()
        return value
    if value is None:
        return None
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        try:
            return StructuredOutputsParams(**value)
        except TypeError as error:
            raise InvalidRequestError(f"structured_outputs: {error}.", param="structured_outputs") from error
    raise InvalidRequestError(
        f"structured_outputs must be a StructuredOutputsParams or a mapping of its fields, got {_shown(value)}.", param="structured_outputs"
    )
