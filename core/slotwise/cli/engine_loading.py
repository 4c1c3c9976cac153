"""Opens an engine for a command, with a progress bar, and closes it again. torch is imported here, behind the bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slotwise.cli.run_view import loading_bar

if TYPE_CHECKING:
    from slotwise.config.loading import LoadedConfig
    from slotwise.engine.llm import LLM


@contextmanager
def open_llm(loaded: LoadedConfig) -> Iterator[LLM]:
    """Raises ConfigError, PluginError or ModelLoadError before anything runs."""
    with loading_bar() as progress:
        from slotwise.engine.llm import LLM

        llm = LLM(config=loaded, progress=progress)
    try:
        yield llm
    finally:
        llm.shutdown()
