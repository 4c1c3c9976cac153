"""From a checked request to what is sent: one document, or the chunks of a stream. The same for all endpoints."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Generic

from slotwise.engine.outputs import RequestOutput
from slotwise_contrib.server.endpoint import Endpoint, RequestT, ServedModel, check_num_choices
from slotwise_contrib.server.generation import Work, run
from slotwise_contrib.server.pieces import Piece, PieceMaker
from slotwise_contrib.server.usage import UsageCounter


class Answer(Generic[RequestT]):
    """One HTTP request on its way through the engine. Either `document` or `chunks` is used, once."""

    def __init__(self, endpoint: Endpoint[RequestT], request: RequestT, model: ServedModel) -> None:
        """Raises InvalidRequestError or APIError for what can be known before the engine is asked."""
        self._endpoint = endpoint
        self._request = request
        self._model = model
        self._id = f"{endpoint.id_prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._params = endpoint.sampling_params(request)
        self._usage = UsageCounter()
        prompts = endpoint.prompts(request, model.engine)
        check_num_choices(len(prompts), self._params.n)
        self._makers = [self._piece_maker(index) for index in range(len(prompts))]
        self._work = Work(
            prompts=prompts,
            params=self._params,
            priority=request.priority or 0,
            client_id=request.user,
            cache_salt=request.cache_salt,
            add_special_tokens=endpoint.adds_special_tokens(request),
        )

    async def document(self) -> dict[str, Any]:
        """The whole answer. Raises what `generation.run` raises."""
        choices: list[dict[str, Any]] = []
        async with aclosing(run(self._model.engine, self._work, self._id)) as outputs:
            async for index, output in outputs:
                choices += [self._choice(piece, self._endpoint.choice_content(piece)) for piece in self._pieces(index, output)]
        choices.sort(key=lambda choice: int(choice["index"]))
        return {**self._envelope(self._endpoint.object_name), "choices": choices, "usage": self._usage.record()}

    async def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a stream; the last one has the usage, if it was asked for. Raises what `generation.run` raises."""
        async with aclosing(run(self._model.engine, self._work, self._id)) as outputs:
            async for index, output in outputs:
                for piece in self._pieces(index, output):
                    if not piece.is_empty:
                        yield self._chunk([self._choice(piece, self._endpoint.chunk_content(piece))])
        if self._request.includes_usage:
            yield {**self._envelope(self._endpoint.chunk_object_name), "choices": [], "usage": self._usage.record()}

    def _pieces(self, index: int, output: RequestOutput) -> list[Piece]:
        self._usage.add(index, output)
        return self._makers[index].take(output)

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = {**self._envelope(self._endpoint.chunk_object_name), "choices": choices}
        if self._request.includes_usage:
            chunk["usage"] = self._usage.record() if self._request.has_continuous_usage else None
        return chunk

    def _envelope(self, object_name: str) -> dict[str, Any]:
        return {"id": self._id, "object": object_name, "created": self._created, "model": self._model.name}

    def _choice(self, piece: Piece, content: dict[str, Any]) -> dict[str, Any]:
        choice = {
            "index": piece.index,
            **content,
            "logprobs": piece.logprobs,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
        }
        if piece.prompt_logprobs is not None:
            choice["prompt_logprobs"] = piece.prompt_logprobs
        return choice

    def _piece_maker(self, prompt_index: int) -> PieceMaker:
        endpoint, request, params, model = self._endpoint, self._request, self._params, self._model
        return PieceMaker(
            first_index=prompt_index * params.n,
            has_echo=endpoint.has_echo(request),
            needs_prompt_logprobs=params.prompt_logprobs is not None,
            shows_prompt_logprobs=request.prompt_logprobs is not None,
            writer=None if params.logprobs is None else lambda ids: endpoint.logprob_writer(request, params, model, ids),
            prompt_text=lambda ids: model.prompt_text(ids, skip_special_tokens=params.skip_special_tokens),
        )
