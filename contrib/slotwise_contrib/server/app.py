"""`create_app`: the routes. What this file does not know: what completions and chat mean, sockets, configuration files."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from slotwise.engine.detokenizer import TextDecoder
from slotwise_contrib.server.answers import Answer
from slotwise_contrib.server.authentication import bearer_check
from slotwise_contrib.server.body import parse_model, read_object
from slotwise_contrib.server.chat_endpoint import ChatEndpoint
from slotwise_contrib.server.completion_endpoint import CompletionEndpoint
from slotwise_contrib.server.disconnect import until_disconnect
from slotwise_contrib.server.endpoint import Endpoint, RequestT, ServedModel
from slotwise_contrib.server.errors import (
    CLIENT_CLOSED_REQUEST,
    APIError,
    api_error,
    fields_renamed,
    install_error_handlers,
    json_response,
)
from slotwise_contrib.server.event_stream import EventStream
from slotwise_contrib.server.request_id import RequestIdMiddleware
from slotwise_contrib.server.unsupported import refuse_unsupported

if TYPE_CHECKING:
    from slotwise.engine.async_llm import AsyncLLM

MAX_BODY_BYTES = 16 * 2**20


def create_app(
    engine: AsyncLLM, *, api_key: str | None = None, max_body_bytes: int = MAX_BODY_BYTES, shuts_down_engine: bool = False
) -> ASGIApp:
    """The ASGI application for one engine.

    api_key: bearer token asked for on /v1 routes; None = open. shuts_down_engine: end the engine when the application stops, after the last
    answer. Raises ConfigError for an empty key.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        if shuts_down_engine:
            engine.shutdown()

    app = FastAPI(title="Slotwise", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    install_error_handlers(app)
    model = ServedModel(engine=engine, decoder=None if engine.tokenizer is None else TextDecoder(engine.tokenizer))
    _add_health(app, engine)
    protected = APIRouter(dependencies=[Depends(bearer_check(api_key))])
    _add_models(protected, model)
    _add_generation(protected, CompletionEndpoint(), model, max_body_bytes)
    _add_generation(protected, ChatEndpoint(), model, max_body_bytes)
    app.include_router(protected)
    return RequestIdMiddleware(app)


def _add_health(app: FastAPI, engine: AsyncLLM) -> None:
    async def health() -> Response:
        """200 while requests can be served, however many wait; 503 from the moment the engine ended."""
        if not engine.is_alive:
            raise APIError(503, f"The engine has ended ({engine.error or 'it was shut down'}); restart the server.", code="engine_dead")
        return json_response({"status": "ok"})

    app.add_api_route("/health", health, methods=["GET"])


def _add_models(router: APIRouter, model: ServedModel) -> None:
    record = {
        "id": model.name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "slotwise",
        "max_model_len": model.engine.max_model_len,
    }

    async def models() -> Response:
        return json_response({"object": "list", "data": [record]})

    async def one_model(name: str) -> Response:
        _check_model(name, model)
        return json_response(record)

    router.add_api_route("/v1/models", models, methods=["GET"])
    router.add_api_route("/v1/models/{name:path}", one_model, methods=["GET"])


def _add_generation(router: APIRouter, endpoint: Endpoint[RequestT], model: ServedModel, max_body_bytes: int) -> None:
    async def answer(http_request: Request) -> Response:
        fields = await read_object(http_request, max_bytes=max_body_bytes)
        refuse_unsupported(fields, is_chat=endpoint.is_chat)
        request = parse_model(endpoint.request_model, fields)
        _check_model(request.model, model)
        with fields_renamed(endpoint.engine_names(request)):
            made = Answer(endpoint, request, model)
            if not request.stream:
                return json_response(await until_disconnect(http_request.receive, made.document()))
            chunks = made.chunks()
            return EventStream(await until_disconnect(http_request.receive, _first(chunks)), chunks)

    async def generate(http_request: Request) -> Response:
        try:
            return await answer(http_request)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except Exception as error:
            # Answered here, since the framework closes the connection under an unexpected error.
            return api_error(error).response()

    router.add_api_route(endpoint.path, generate, methods=["POST"])


async def _first(chunks: AsyncIterator[dict[str, Any]]) -> dict[str, Any] | None:
    return await anext(chunks, None)


def _check_model(name: str | None, model: ServedModel) -> None:
    if name is not None and name != model.name:
        raise APIError(404, f"The model {name!r} is not served here; served is {model.name!r}.", param="model", code="model_not_found")
