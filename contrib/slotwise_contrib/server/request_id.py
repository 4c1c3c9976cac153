"""Middleware: every answer carries an X-Request-Id, the client's own or a new one. Ids need not be unique: nothing is looked up by them."""

from __future__ import annotations

import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-Id"
MAX_LEN = 128


class RequestIdMiddleware:
    """Plain ASGI, so that disconnects and streams pass through it untouched."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope).get(HEADER, ""))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


def _request_id(sent: str) -> str:
    """What the client sent, if it is short and plain enough to be echoed."""
    return sent if 0 < len(sent) <= MAX_LEN and sent.isascii() and sent.isprintable() else uuid.uuid4().hex
