"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slotwise.engine.prompt_checks import Prompt
from slotwise.sampling_params import SamplingParams
from slotwise_contrib.server.completion_logprobs import CompletionLogprobWriter
from slotwise_contrib.server.completion_request import CompletionRequest
from slotwise_contrib.server.endpoint import Endpoint, ServedModel
from slotwise_contrib.server.logprobs import LogprobWriter
from slotwise_contrib.server.pieces import Piece
from slotwise_contrib.server.prompts import split_prompts

if TYPE_CHECKING:
    from slotwise.engine.async_llm import AsyncLLM


class CompletionEndpoint(Endpoint[CompletionRequest]):
    """Prompts as they are; choice i of prompt p has index p * n + i."""

    path = "/v1/completions"
    id_prefix = "cmpl"
    object_name = "text_completion"
    chunk_object_name = "text_completion"
    is_chat = False
    request_model = CompletionRequest

    def prompts(self, request: CompletionRequest, engine: AsyncLLM) -> Sequence[Prompt]:
        return split_prompts(request.prompt)

    def own_sampling(self, request: CompletionRequest) -> dict[str, Any]:
        own: dict[str, Any] = {"max_tokens": request.max_tokens, "logprobs": request.logprobs}
        if request.echo and request.logprobs is not None:
            wanted = (request.logprobs, request.prompt_logprobs or 0)
            own["prompt_logprobs"] = -1 if -1 in wanted else max(wanted)
        return own

    def engine_names(self, request: CompletionRequest) -> Mapping[str, str]:
        echoes = request.echo and request.prompt_logprobs is None
        return {"prompt_logprobs": "logprobs"} if echoes else {}

    def logprob_writer(
        self, request: CompletionRequest, params: SamplingParams, model: ServedModel, prompt_token_ids: Sequence[int]
    ) -> LogprobWriter:
        return CompletionLogprobWriter(
            model.decoder,
            prompt_token_ids,
            has_echo=self.has_echo(request),
            skip_special_tokens=params.skip_special_tokens,
            shows_stop_token=params.include_stop_str_in_output,
        )

    def choice_content(self, piece: Piece) -> dict[str, Any]:
        return {"text": piece.text}

    def chunk_content(self, piece: Piece) -> dict[str, Any]:
        return {"text": piece.text}

    def has_echo(self, request: CompletionRequest) -> bool:
        return bool(request.echo)

    def adds_special_tokens(self, request: CompletionRequest) -> bool:
        return request.add_special_tokens is not False
