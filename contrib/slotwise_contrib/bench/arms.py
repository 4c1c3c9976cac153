"""Arms of a comparison: one model under different settings, each written as on a command line."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from slotwise.config.loading import LoadedConfig, load_config

if TYPE_CHECKING:
    from slotwise.engine.llm import LLM


def arm_config(source: str, arm: str) -> LoadedConfig:
    """arm: `KEY=VALUE,KEY=VALUE`, empty for none. Raises ConfigError."""
    return load_config(set_values=[pair.strip() for pair in arm.split(",") if pair.strip()], overrides={"model.source": source})


def engine(source: str, arm: str) -> Callable[[], LLM]:
    """What makes the engine. Raises ConfigError at once for settings that are wrong."""
    config = arm_config(source, arm)

    def make() -> LLM:
        from slotwise.engine.llm import LLM

        return LLM(config=config)

    return make


def timed_engine(source: str, arm: str) -> Callable[[], tuple[LLM, float]]:
    """The same, with the seconds it took."""
    make = engine(source, arm)

    def timed() -> tuple[LLM, float]:
        start = time.perf_counter()
        return make(), time.perf_counter() - start

    return timed
