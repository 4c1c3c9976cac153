"""The serving program: bind, load, serve. Called by the command, with the configuration resolved."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from slotwise.cli.rendering import write_text
from slotwise.cli.run_view import loading_bar
from slotwise_contrib.server.app import create_app
from slotwise_contrib.server.authentication import bearer_check
from slotwise_contrib.server.listener import bind, make_server, url_of
from slotwise_contrib.server.strict_json import dump_json

if TYPE_CHECKING:
    from slotwise.config.loading import LoadedConfig
    from slotwise.engine.async_llm import AsyncLLM


def run_server(loaded: LoadedConfig, *, as_json: bool = False) -> None:
    """Returns, or is ended by the signal, when the server was told to stop. Raises ConfigError, PluginError or ModelLoadError before that.

    as_json: say `{"url", "model", "components"}` in one line on stdout when clients can connect, instead of a sentence.
    """
    settings = loaded.config.server
    bearer_check(settings.api_key)
    with bind(settings.host, settings.port) as listening:
        with loading_bar() as progress:
            from slotwise.engine.async_llm import AsyncLLM

            engine = AsyncLLM(config=loaded, progress=progress)
        try:
            app = create_app(engine, api_key=settings.api_key, shuts_down_engine=True)
            server = make_server(app, announce=lambda: _announce(url_of(listening), engine, as_json=as_json))
            server.run(sockets=[listening])
        finally:
            engine.shutdown()


def _announce(url: str, engine: AsyncLLM, *, as_json: bool) -> None:
    parts = [f"{used.slot}{f'.{used.part}' if used.part else ''}={used.name}" for used in engine.components]
    if as_json:
        write_text(dump_json({"url": url, "model": engine.model_name, "components": parts}).decode())
    else:
        write_text(f"Serving {engine.model_name} on {url} ({', '.join(parts)}). Stop with Ctrl+C.")
    sys.stdout.flush()
