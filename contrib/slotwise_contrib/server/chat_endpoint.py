"""POST /v1/chat/completions. The engine's chat template writes the prompt, special tokens included, as it does for the library's `chat`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slotwise.engine.prompt_checks import Prompt
from slotwise.errors import InvalidRequestError
from slotwise.sampling_params import SamplingParams
from slotwise_contrib.server.chat_logprobs import ChatLogprobWriter
from slotwise_contrib.server.chat_request import ChatRequest
from slotwise_contrib.server.endpoint import Endpoint, ServedModel
from slotwise_contrib.server.logprobs import LogprobWriter
from slotwise_contrib.server.pieces import Piece

if TYPE_CHECKING:
    from slotwise.engine.async_llm import AsyncLLM

ROLE = "assistant"


class ChatEndpoint(Endpoint[ChatRequest]):
    """One conversation, n answers."""

    path = "/v1/chat/completions"
    id_prefix = "chatcmpl"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"
    is_chat = True
    request_model = ChatRequest

    def prompts(self, request: ChatRequest, engine: AsyncLLM) -> Sequence[Prompt]:
        token_ids = engine.encode_chat(
            request.messages,
            add_generation_prompt=request.add_generation_prompt is not False,
            continue_final_message=bool(request.continue_final_message),
        )
        return [token_ids]

    def own_sampling(self, request: ChatRequest) -> dict[str, Any]:
        if request.top_logprobs is not None and not request.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs set to true.", param="top_logprobs")
        max_tokens = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
        return {"max_tokens": max_tokens, "logprobs": (request.top_logprobs or 0) if request.logprobs else None}

    def engine_names(self, request: ChatRequest) -> Mapping[str, str]:
        names = {"prompt": "messages", "logprobs": "top_logprobs"}
        return names if request.max_completion_tokens is None else {**names, "max_tokens": "max_completion_tokens"}

    def logprob_writer(
        self, request: ChatRequest, params: SamplingParams, model: ServedModel, prompt_token_ids: Sequence[int]
    ) -> LogprobWriter:
        return ChatLogprobWriter(params.logprobs or 0)

    def choice_content(self, piece: Piece) -> dict[str, Any]:
        return {"message": {"role": ROLE, "content": piece.text}}

    def chunk_content(self, piece: Piece) -> dict[str, Any]:
        return {"delta": {"role": ROLE, "content": piece.text} if piece.is_first else {"content": piece.text}}
