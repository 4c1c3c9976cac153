"""The values of a resolved configuration, flat: path -> value. Options are listed one by one, absent alternatives not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slotwise.config.engine_config import EngineConfig
from slotwise.config.shape import Branch, Leaf, Path, Shape, engine_shape, walk

MASK = "********"


def flat_values(config: EngineConfig) -> dict[Path, Any]:
    """Every value by its path, in the order of the file. An empty table is one value, `{}`."""
    return dict(_values(engine_shape(), config.model_dump(), ()))


def shown_values(config: EngineConfig) -> dict[str, Any]:
    """Dotted key -> value, fit to be printed: secrets are masked."""
    return {".".join(path): shown(path, value) for path, value in flat_values(config).items()}


def shown_tree(config: EngineConfig) -> dict[str, Any]:
    """The configuration as nested tables, fit to be printed: secrets are masked."""
    tree: dict[str, Any] = config.model_dump()
    for path, value in flat_values(config).items():
        if shown(path, value) is not value:
            table = tree
            for key in path[:-1]:
                table = table[key]
            table[path[-1]] = MASK
    return tree


def shown(path: Path, value: Any) -> Any:
    """The value, or a mask if it is a secret that is set."""
    shape = walk(path)[0]
    return MASK if isinstance(shape, Leaf) and shape.is_secret and value is not None else value


def _values(shape: Shape | None, value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(shape, Leaf) or not isinstance(value, Mapping) or not value:
        yield path, value
        return
    for key, item in value.items():
        yield from _values(shape.children[key] if isinstance(shape, Branch) else None, item, (*path, str(key)))
