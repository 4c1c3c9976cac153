"""`Endpoint`: what tells completions and chat apart. Everything else is shared.

What this file does not know: HTTP, streams, how the engine works.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from slotwise.engine.detokenizer import TextDecoder
from slotwise.engine.prompt_checks import Prompt
from slotwise.errors import InvalidRequestError
from slotwise.sampling_params import OutputKind, SamplingParams
from slotwise_contrib.server.errors import APIError
from slotwise_contrib.server.logprobs import LogprobWriter
from slotwise_contrib.server.pieces import Piece
from slotwise_contrib.server.request_fields import SAMPLING_FIELDS, GenerationRequest

if TYPE_CHECKING:
    from slotwise.engine.async_llm import AsyncLLM

RequestT = TypeVar("RequestT", bound=GenerationRequest)
MAX_CHOICES = 4096
"""Most choices of one HTTP request: prompts times n."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedModel:
    """The engine and what is made once for it."""

    engine: AsyncLLM
    decoder: TextDecoder | None = field(repr=False)
    """None where the engine has no tokenizer."""

    @property
    def name(self) -> str:
        return self.engine.model_name

    def prompt_text(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of a prompt that came as ids."""
        if self.decoder is None:
            return ""
        stream = self.decoder.stream(skip_special_tokens=skip_special_tokens)
        return stream.append(token_ids)


class Endpoint(ABC, Generic[RequestT]):
    """One way to ask for text. Has no state."""

    path: ClassVar[str]
    id_prefix: ClassVar[str]
    object_name: ClassVar[str]
    chunk_object_name: ClassVar[str]
    is_chat: ClassVar[bool]
    request_model: type[RequestT]

    @abstractmethod
    def prompts(self, request: RequestT, engine: AsyncLLM) -> Sequence[Prompt]:
        """At least one. Raises InvalidRequestError."""

    @abstractmethod
    def own_sampling(self, request: RequestT) -> dict[str, Any]:
        """Arguments of `SamplingParams` besides the shared fields: max_tokens, logprobs, and what overrides others."""

    @abstractmethod
    def engine_names(self, request: RequestT) -> Mapping[str, str]:
        """The engine's name of a field -> the request's, where they differ."""

    @abstractmethod
    def logprob_writer(
        self, request: RequestT, params: SamplingParams, model: ServedModel, prompt_token_ids: Sequence[int]
    ) -> LogprobWriter:
        """For one choice; called only if logprobs were asked for."""

    @abstractmethod
    def choice_content(self, piece: Piece) -> dict[str, Any]:
        """What a choice of a whole answer has besides index, logprobs and reasons."""

    @abstractmethod
    def chunk_content(self, piece: Piece) -> dict[str, Any]:
        """The same for a chunk of a stream."""

    def has_echo(self, request: RequestT) -> bool:
        """Whether choices begin with the prompt."""
        return False

    def adds_special_tokens(self, request: RequestT) -> bool:
        """Whether the tokenizer may add special tokens to a text prompt."""
        return True

    def sampling_params(self, request: RequestT) -> SamplingParams:
        """Raises InvalidRequestError or APIError."""
        fields = request.model_dump(include=set(SAMPLING_FIELDS), exclude_none=True)
        fields |= self.own_sampling(request)
        kind = OutputKind.DELTA if request.stream else OutputKind.FINAL_ONLY
        params = SamplingParams(**fields, output_kind=kind)
        if params.max_tokens == 0 and not self.has_echo(request):
            raise InvalidRequestError("max_tokens is 0, so the answer would be empty; ask for at least 1.", param="max_tokens")
        _check_together(request, params)
        return params


def check_num_choices(num_prompts: int, n: int) -> None:
    """Raises InvalidRequestError where one request would fan out too far."""
    if num_prompts * n > MAX_CHOICES:
        raise InvalidRequestError(
            f"{num_prompts} prompts with n={n} are {num_prompts * n} choices; one request may ask for {MAX_CHOICES}. Send several.",
            param="prompt" if num_prompts > 1 else "n",
        )


def _check_together(request: GenerationRequest, params: SamplingParams) -> None:
    if request.best_of is not None and request.best_of != params.n:
        raise APIError(400, f"best_of is {request.best_of}, but only n, which is {params.n}, is possible; leave it out.", param="best_of")
    if request.stream_options is not None and not request.stream:
        raise APIError(400, "stream_options is only for streams; set stream to true or leave it out.", param="stream_options")
    if request.has_continuous_usage and not request.includes_usage:
        raise APIError(400, "stream_options.continuous_usage_stats needs include_usage.", param="stream_options")
