"""Prompts and parameters from outside -> `EngineCoreRequest`, everything checked that can be known before the first step.

A request that passes cannot fail later for what it asks. What this file does not know: scheduling, other requests, HTTP.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from slotwise.engine.bad_words import tokenize_bad_words
from slotwise.engine.core_request import EngineCoreRequest
from slotwise.engine.prompt_checks import Prompt, check_labels, check_token_ids, split_prompt
from slotwise.errors import InvalidRequestError, PromptTooLongError
from slotwise.pooling_defaults import PoolingDefaults
from slotwise.pooling_params import PoolingParams
from slotwise.sampling_params import OutputKind, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ExtraChecks = Callable[[SamplingParams], None]
"""Raises InvalidRequestError for parameters that a component of the engine cannot serve."""


class InputProcessor:
    """One per engine; safe to call from several threads. All refusals are InvalidRequestError (PromptTooLongError for lengths)."""

    def __init__(
        self,
        *,
        tokenizer: PreTrainedTokenizerBase | None,
        vocab_size: int,
        max_model_len: int,
        max_kv_tokens: int | None = None,
        max_logprobs: int = 20,
        eos_token_ids: frozenset[int] = frozenset(),
        check_extras: ExtraChecks | None = None,
        pooling_defaults: PoolingDefaults | None = None,
        hidden_size: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """vocab_size: rows of the model's logits. max_kv_tokens: tokens one request can have in the KV cache when it has all of it, None =
        no limit. max_logprobs: -1 = the whole vocabulary. tokenizer None: prompts come as ids and outputs have no text. check_extras: what
        the engine's components say of a request; None = they take everything. pooling_defaults: None = the model gives no hidden states,
        so no vectors. hidden_size: most components of a vector, None = not known."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._max_kv_tokens = max_kv_tokens
        self._max_logprobs = max_logprobs
        self._eos_token_ids = eos_token_ids
        self._check_extras = check_extras
        self._pooling_defaults = pooling_defaults
        self._hidden_size = hidden_size
        self._clock = clock

    def process(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        arrival_time: float | None = None,
        priority: int = 0,
        client_id: str | None = None,
        cache_salt: str | None = None,
        add_special_tokens: bool = True,
        is_session: bool = False,
        pooling: PoolingParams | None = None,
    ) -> EngineCoreRequest:
        """prompt: text, token ids, or a mapping with `prompt`, `prompt_token_ids` (which win) or both. request_id: the caller's, any
        string, need not be unique. cache_salt: requests share cached prefixes only with those of the same salt.

        A sequence has room for max_model_len = L tokens. A prompt of L or more is refused; one of L - 1 gets exactly one token; max_tokens
        None means L - prompt, and a larger max_tokens is cut to that, so such a request ends with `length`. The KV cache limits in the same
        way; the last token of an output needs no room there. Where nothing is to be generated (max_tokens 0, pooling) a prompt of L tokens
        is taken.
        """
        check_labels(request_id=request_id, client_id=client_id, cache_salt=cache_salt, priority=priority)
        text, token_ids = split_prompt(prompt)
        if token_ids is None:
            token_ids = self.tokenize(text or "", add_special_tokens)
        self._check_prompt(token_ids, generates=params.max_tokens != 0)
        resolved = self._resolve(params, len(token_ids))
        if is_session:
            _check_session(resolved)
        external_id = request_id if request_id is not None else uuid.uuid4().hex
        return EngineCoreRequest(
            request_id=f"{external_id}-{uuid.uuid4().hex[:8]}",
            external_id=external_id,
            prompt=text,
            prompt_token_ids=token_ids,
            sampling_params=resolved,
            eos_token_ids=self._eos_token_ids,
            bad_words_token_ids=self._bad_words(resolved.bad_words),
            grammar=None if resolved.structured_outputs is None else resolved.structured_outputs.spec(),
            arrival_time=self._clock() if arrival_time is None else arrival_time,
            priority=priority,
            client_id=client_id,
            cache_salt=cache_salt,
            is_session=is_session,
            pooling=pooling,
        )

    def process_pooling(self, prompt: Prompt, params: PoolingParams, **options: Any) -> EngineCoreRequest:
        """A request for the prompt's vector. options: as for `process`."""
        return self.process(
            prompt,
            SamplingParams(max_tokens=0, temperature=0.0, detokenize=False, output_kind=OutputKind.FINAL_ONLY),
            pooling=self._resolve_pooling(params),
            **options,
        )

    def _resolve_pooling(self, params: PoolingParams) -> PoolingParams:
        if self._pooling_defaults is None:
            raise InvalidRequestError("This engine's model component gives no hidden states, so prompts have no vectors.", param="pooling")
        resolved = self._pooling_defaults.resolve(params)
        if resolved.dimensions is not None and self._hidden_size is not None and resolved.dimensions > self._hidden_size:
            raise InvalidRequestError(
                f"dimensions is {resolved.dimensions}, but the model's vectors have {self._hidden_size}; ask for at most that.",
                param="dimensions",
            )
        return resolved

    def more_input(self, prompt: Prompt) -> list[int]:
        """Token ids of a session's next input. Raises InvalidRequestError."""
        text, token_ids = split_prompt(prompt)
        if token_ids is None:
            token_ids = self.tokenize(text or "", add_special_tokens=False)
        self._check_prompt(token_ids, generates=True)
        return token_ids

    def tokenize(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of a prompt's text. Raises InvalidRequestError."""
        if self._tokenizer is None:
            raise InvalidRequestError("The prompt is text, but this engine has no tokenizer; give prompt_token_ids.", param="prompt")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            message = f"The prompt is not valid text: {error}. Replace lone surrogates."
            raise InvalidRequestError(message, param="prompt") from error
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens, verbose=False))

    def _check_prompt(self, token_ids: list[int], *, generates: bool) -> None:
        if not token_ids:
            raise InvalidRequestError("The prompt is empty: it has no token; give at least one.", param="prompt")
        check_token_ids(token_ids, self._vocab_size)
        num_tokens = len(token_ids)
        most = self._max_model_len - 1 if generates else self._max_model_len
        if num_tokens > most:
            raise PromptTooLongError(
                f"The prompt has {num_tokens} tokens, but the context holds {self._max_model_len}, prompt and output together; "
                f"give at most {most}.",
                param="prompt",
            )
        if self._max_kv_tokens is not None and num_tokens > self._max_kv_tokens:
            raise PromptTooLongError(
                f"The prompt has {num_tokens} tokens, but the whole KV cache holds {self._max_kv_tokens}; shorten the prompt or give the "
                "engine a larger cache (kv_cache.num_blocks).",
                param="prompt",
            )

    def _resolve(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        resolved = params.clone()
        resolved.check()  # fields may have been set since it was made
        room = self._max_model_len - num_prompt_tokens
        if self._max_kv_tokens is not None:
            room = min(room, self._max_kv_tokens - num_prompt_tokens + 1)
        resolved.max_tokens = room if resolved.max_tokens is None else min(resolved.max_tokens, room)
        resolved.min_tokens = min(resolved.min_tokens, resolved.max_tokens)
        self._check_logprobs("logprobs", resolved.logprobs)
        self._check_logprobs("prompt_logprobs", resolved.prompt_logprobs)
        self._check_ids("stop_token_ids", resolved.stop_token_ids)
        self._check_ids("allowed_token_ids", resolved.allowed_token_ids or ())
        self._check_ids("logit_bias", tuple(resolved.logit_bias or ()))
        if self._check_extras is not None:
            self._check_extras(resolved)
        if resolved.stop and self._tokenizer is None:
            raise InvalidRequestError("stop needs text, but this engine has no tokenizer; use stop_token_ids.", param="stop")
        return resolved

    def _check_logprobs(self, name: str, wanted: int | None) -> None:
        if wanted is None:
            return
        limit = self._vocab_size if self._max_logprobs == -1 else min(self._max_logprobs, self._vocab_size)
        if (self._vocab_size if wanted == -1 else wanted) > limit:
            raise InvalidRequestError(
                f"{name} is {wanted}, but at most {limit} are given per token; ask for fewer or raise sampler.max_logprobs.", param=name
            )

    def _check_ids(self, name: str, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            if token_id >= self._vocab_size:
                raise InvalidRequestError(
                    f"{name} has id {token_id}, but the model's vocabulary has ids 0 .. {self._vocab_size - 1}.", param=name
                )

    def _bad_words(self, words: list[str]) -> list[list[int]]:
        if not words:
            return []
        if self._tokenizer is None:
            raise InvalidRequestError("bad_words needs text, but this engine has no tokenizer.", param="bad_words")
        return tokenize_bad_words(self._tokenizer, words)


def _check_session(params: SamplingParams) -> None:
    """Raises InvalidRequestError for what has no meaning when a request goes on after it stopped."""
    if params.max_tokens == 0:
        raise InvalidRequestError("A session's turns generate at least one token; give max_tokens.", param="max_tokens")
    if params.n > 1:
        raise InvalidRequestError(f"n is {params.n}, but a session has one completion; ask for n=1.", param="n")
    if params.stop:
        raise InvalidRequestError("A session's turns end by stop_token_ids or max_tokens; stop strings are not supported.", param="stop")
    if params.structured_outputs is not None:
        raise InvalidRequestError("A session's turns have no structured output; leave it out.", param="structured_outputs")
    if params.prompt_logprobs is not None:
        raise InvalidRequestError("A session gives no prompt_logprobs; leave it out.", param="prompt_logprobs")
