"""Opens an engine for a command, with a progress bar, and closes it again. torch is imported here, behind the bar."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slotwise.cli.run_view import loading_bar
from slotwise.openmp import let_openmp_sleep
from slotwise.startup import collection_paused, stage

if TYPE_CHECKING:
    from slotwise.config.loading import LoadedConfig
    from slotwise.engine.llm import LLM


@contextmanager
def open_llm(loaded: LoadedConfig) -> Iterator[LLM]:
    """Raises ConfigError, PluginError or ModelLoadError before anything runs."""
    with collection_paused(), loading_bar() as progress:
        with stage("import of torch"):
            let_openmp_sleep()
            import torch  # noqa: F401
        with stage("import of the engine"):
            from slotwise.engine.llm import LLM
        with stage("rest of the start"):
            llm = LLM(config=loaded, progress=progress)
    gc.freeze()  # what is there now stays: collections need not look at it again
    try:
        yield llm
    finally:
        llm.shutdown()
