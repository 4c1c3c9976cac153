"""The bearer token that clients must send, where one is configured."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable

from fastapi import Request

from slotwise.errors import ConfigError
from slotwise_contrib.server.errors import APIError


def bearer_check(api_key: str | None) -> Callable[[Request], Awaitable[None]]:
    """A dependency for routes: raises APIError 401 unless the request has the key. None = everybody may come in.

    Raises ConfigError for an empty key, which would protect nothing.
    """
    if api_key is not None and not api_key.strip():
        raise ConfigError("server.api_key is empty; give a key, or leave it out to let everybody in.", key="server.api_key")

    async def check(request: Request) -> None:
        if api_key is None:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(token.strip().encode(), api_key.encode()):
            raise APIError(
                401,
                "The API key is missing or wrong; send it as 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    return check
