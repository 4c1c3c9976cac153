"""`slotwise serve MODEL|CONFIG`: load, listen, answer until told to stop. Everything heavy is imported when the command runs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotwise.cli.parameters import AsJson, SetValues
from slotwise.errors import ConfigError

if TYPE_CHECKING:
    from slotwise.config.loading import LoadedConfig

CONFIG_SUFFIXES = (".toml", ".yaml", ".yml", ".json")


def serve(
    target: Annotated[
        str, typer.Argument(metavar="MODEL|CONFIG", help="A directory, a .gguf file or a known name; or a configuration file.")
    ],
    *,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on (server.host).")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port; 0 = any free one (server.port).")] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key", help="Token that clients must send; the variable SLOTWISE_SERVER__API_KEY keeps it out of process lists."
        ),
    ] = None,
    set_values: SetValues = None,
    as_json: AsJson = False,
) -> None:
    """Serve a model over an OpenAI-compatible HTTP API."""
    overrides = {"server.host": host, "server.port": port, "server.api_key": api_key}
    loaded = load_settings(target, {key: value for key, value in overrides.items() if value is not None}, set_values or ())
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from slotwise_contrib.server.program import run_server

    run_server(loaded, as_json=as_json)


def load_settings(target: str, overrides: dict[str, Any], set_values: Sequence[str]) -> LoadedConfig:
    """The configuration that the command line asks for. Raises ConfigError, also for a file that names no model."""
    from slotwise.config.loading import load_config

    if is_config(target):
        loaded = load_config(target, overrides=overrides, set_values=set_values)
    else:
        loaded = load_config(overrides={**overrides, "model.source": target}, set_values=set_values)
    if loaded.config.model.source is None:
        raise ConfigError(
            f"{target} names no model to serve. Set model.source in it, or with --set model.source=NAME: a directory, a .gguf file, or a "
            "name that `slotwise models` lists.",
            key="model.source",
        )
    return loaded


def is_config(target: str) -> bool:
    """Whether the argument names a configuration file, by its suffix; a directory never does."""
    path = Path(target)
    return path.suffix.lower() in CONFIG_SUFFIXES and not path.is_dir()
