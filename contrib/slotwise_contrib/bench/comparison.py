"""Two results of one benchmark beside each other: every distribution that both have, by its place in them.

What this file does not know: which benchmark made them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotwise.errors import ConfigError

_NAMES = (
    "arm",
    "workload",
    "component",
    "out_features",
    "in_features",
    "num_rows",
    "case",
    "shape",
    "spec",
    "setting",
    "batch",
    "vocab_size",
)
"""Fields that tell entries of a list apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One figure."""

    name: str
    first: float
    second: float

    @property
    def ratio(self) -> float:
        """Second over first."""
        return self.second / self.first


def read_result(path: Path) -> Any:
    """Raises ConfigError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a benchmark's result: {error}. Give files that `slotwise bench ... --json` wrote.") from error


def compare_results(first: Any, second: Any) -> list[Comparison]:
    """Medians that both have, in the first's order. Raises ConfigError if there are none."""
    mine, yours = dict(_medians(first, "")), dict(_medians(second, ""))
    found = [Comparison(name=name, first=mine[name], second=yours[name]) for name in mine if name in yours and mine[name]]
    if not found:
        raise ConfigError("The two results have no figure in common; give results of the same benchmark with the same cases.")
    return found


def _medians(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict) and "median" in value:
        yield path, float(value["median"])
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _medians(each, f"{path} {key}".strip())
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _medians(each, f"{path} {_label(each, index)}".strip())


def _label(entry: Any, index: int) -> str:
    """What tells an entry of a list apart: its names where it has some, else its place."""
    if not isinstance(entry, dict):
        return f"#{index}"
    named = [_flat(entry[name]) for name in _NAMES if name in entry]
    return f"[{', '.join(named)}]" if named else f"#{index}"


def _flat(value: Any) -> str:
    return " ".join(f"{key} {each}" for key, each in value.items()) if isinstance(value, dict) else str(value)
