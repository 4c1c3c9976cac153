"""Settings given as Python keywords: `LLM(..., attention="torch_sdpa", scheduler={"use": "priority"}, seed=3)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slotwise.config.layers import Layer
from slotwise.config.origins import Origin
from slotwise.config.problems import raise_problems
from slotwise.config.shape import Path
from slotwise.config.typed_tree import TreeReader


def read_keywords(overrides: Mapping[str, Any]) -> Layer:
    """The layer that keywords make; a key may be dotted, and a later one wins. Raises ConfigError naming every unusable one."""
    reader = TreeReader(origin_of=_origin)
    for key, value in overrides.items():
        reader.read(_nested(key, value))
    raise_problems(reader.problems)
    return reader.layer


def _origin(raw: Path) -> Origin:
    return Origin(kind="keyword", where=f"{'.'.join(raw)}=")


def _nested(key: str, value: Any) -> dict[str, Any]:
    *sections, last = key.split(".")
    tree = {last: value}
    for section in reversed(sections):
        tree = {section: tree}
    return tree
