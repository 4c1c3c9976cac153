"""The socket, and uvicorn on it: starts, says where it listens, and stops gracefully on SIGTERM or SIGINT.

What this file does not know: what the application does, configuration files.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from slotwise.errors import ConfigError

GRACE_SECONDS = 30
"""How long a stopping server lets answers in flight go on before it aborts them."""


class AnnouncingServer(uvicorn.Server):
    """Calls `announce` once, when clients can connect."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet, so that a port in use is known before a model is loaded. Raises ConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"server.host {host!r} is no address to listen on: {error}.", key="server.host") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        message = f"The server cannot listen on {host}, port {port}: {error}. Choose another with --port; 0 takes any free one."
        raise ConfigError(message, key="server.port") from error
    return bound


def url_of(bound: socket.socket) -> str:
    """The address as clients write it."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: ASGIApp, *, announce: Callable[[], None], grace_seconds: int = GRACE_SECONDS) -> AnnouncingServer:
    """A server to `run(sockets=[...])`. Logs through `logging`, to wherever the program sends its logs."""
    config = uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=grace_seconds, server_header=False)
    return AnnouncingServer(config, announce)
