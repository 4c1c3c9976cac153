"""Errors as HTTP clients see them: a status and `{"error": {"message", "type", "param", "code"}}`, always strict JSON.

| raised                                   | status | code                                      |
|------------------------------------------|--------|-------------------------------------------|
| `InvalidRequestError`                    | 400    | null                                      |
| `PromptTooLongError`                     | 400    | `context_length_exceeded`                 |
| `QueueFullError`                         | 429    | `queue_full`; Retry-After is sent         |
| `EngineDeadError`                        | 503    | `engine_dead`                             |
| anything else                            | 500    | `internal_error`; the log has the rest    |

The rest (401, 404, 405, 413, 415) is raised as `APIError` or comes from the router.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from slotwise.errors import EngineDeadError, InvalidRequestError, PromptTooLongError, QueueFullError, SlotwiseError
from slotwise_contrib.server.strict_json import dump_json

_logger = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499
"""Status of an answer that nobody reads; for logs."""


class APIError(Exception):
    """An answer that is an error."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The error object."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        if self.status == 429:
            kind = "rate_limit_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return json_response(self.body(), status=self.status, headers=self.headers)


def json_response(content: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(dump_json(content), status_code=status, media_type="application/json", headers=dict(headers or {}))


def api_error(error: Exception) -> APIError:
    """Any exception as the answer it deserves."""
    match error:
        case APIError():
            return error
        case PromptTooLongError():
            return APIError(400, str(error), param=error.param, code="context_length_exceeded")
        case InvalidRequestError():
            return APIError(400, str(error), param=error.param)
        case QueueFullError():
            return APIError(429, str(error), code="queue_full", headers={"Retry-After": "1"})
        case EngineDeadError():
            return APIError(503, str(error), code="engine_dead")
        case HTTPException():
            return APIError(error.status_code, f"{error.detail}.", headers=error.headers)
    _logger.error("a request failed", exc_info=error)
    return APIError(500, "The server failed to answer this request; its log says why.", code="internal_error")


@contextmanager
def fields_renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Inside, errors about an engine's field name the request's field instead."""
    try:
        yield
    except InvalidRequestError as error:
        failure = api_error(error)
        failure.param = names.get(failure.param or "", failure.param)
        raise failure from error


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of the app an error object. Unexpected ones reach the client without their details."""
    for kind in (APIError, SlotwiseError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer)


async def _answer(_: Request, error: Exception) -> Response:
    return api_error(error).response()
