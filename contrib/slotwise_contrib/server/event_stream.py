"""Server-sent events: each chunk a `data:` line with JSON, errors in the middle too, and `data: [DONE]` at the end, whatever happened."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slotwise_contrib.server.disconnect import until_disconnect
from slotwise_contrib.server.errors import api_error
from slotwise_contrib.server.strict_json import dump_json

DONE = b"data: [DONE]\n\n"


class EventStream(Response):
    """Sends chunks as they come. When the client leaves, or the server stops, the chunks' generator is closed before this returns."""

    media_type = "text/event-stream"

    def __init__(self, first: dict[str, Any] | None, rest: AsyncGenerator[dict[str, Any], None]) -> None:
        """first: the chunk awaited before the answer begins, so that a refused request gets an error status; None if there is none."""
        self.status_code = 200
        self.background = None
        self._first = first
        self._rest = rest
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest):
            try:
                await until_disconnect(receive, self._send_all(send))
            except ClientDisconnect:
                return

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events()) as events:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncGenerator[bytes, None]:
        """The status is sent before the first one, so a failure can only be told in the stream."""
        try:
            if self._first is not None:
                yield _event(self._first)
            async for chunk in self._rest:
                yield _event(chunk)
        except Exception as error:
            yield _event(api_error(error).body())
        yield DONE


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + dump_json(content) + b"\n\n"
