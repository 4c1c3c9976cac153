"""Nested tables with typed values (a file, Python keywords) turned into a layer, checked against the shape.

Rules. Keys may be spelled with dashes or underscores, not both at once. A switch is true, false, 1 or 0; text is never taken for a switch
or a number. A slot given as plain text means `{use = that}`, the model `{source = that}`. This file does not know file formats.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_origin

from pydantic import BaseModel

from slotwise.config.layers import Layer, Setting, put
from slotwise.config.origins import Origin
from slotwise.config.problems import Problem, describe_value
from slotwise.config.shape import Branch, Leaf, Path, Shape, Table, engine_shape
from slotwise.config.unknown_key import unknown_key

MAX_DEPTH = 32
"""Deepest nesting of tables."""


@dataclass(slots=True)
class TreeReader:
    """Reads one tree; `layer` and `problems` hold the outcome."""

    origin_of: Callable[[Path], Origin]
    """Path as spelled in the tree -> where it stands."""
    layer: Layer = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def read(self, tree: Mapping[Any, Any]) -> None:
        """Read a whole configuration."""
        self.read_at(engine_shape(), tree, (), ())

    def read_at(self, shape: Shape, value: Any, path: Path, raw: Path) -> None:
        """Read the part of a tree at `path`, spelled `raw`."""
        value = _plain(value)
        if value is None:
            put(self.layer, path, Setting(None, self.origin_of(raw)))
        elif isinstance(shape, Leaf):
            self._read_leaf(shape, value, path, raw)
        elif isinstance(shape, Table):
            self._read_table(value, path, raw, shape.depth)
        elif isinstance(value, Mapping):
            self._read_branch(shape, value, path, raw)
        elif shape.shorthand is not None and isinstance(value, str | list):
            self.read_at(shape.children[shape.shorthand], value, (*path, shape.shorthand), raw)
        else:
            self._complain(path, raw, f"{_title(path)} is a section; given {describe_value(value)}; accepted: {_accepted(shape)}")

    def _read_branch(self, branch: Branch, value: Mapping[Any, Any], path: Path, raw: Path) -> None:
        for key, item in self._spelled_once(value, path, raw):
            name = key.replace("-", "_")
            if name in branch.children:
                self.read_at(branch.children[name], item, (*path, name), (*raw, key))
            else:
                self._complain((*path, name), (*raw, key), unknown_key(name, path, branch))

    def _read_table(self, value: Any, path: Path, raw: Path, depth: int) -> None:
        if not isinstance(value, Mapping):
            self._complain(path, raw, f"{'.'.join(path)}: given {describe_value(value)}; accepted: a table of options")
            return
        for key, item in self._spelled_once(value, path, raw, dashes=depth > 0):
            name = key.replace("-", "_") if depth > 0 else key
            inner, spelled = (*path, name), (*raw, key)
            plain = _plain(item)
            if len(inner) > MAX_DEPTH:
                self._complain(inner, spelled, f"tables are nested deeper than {MAX_DEPTH}")
            elif depth > 1 or (isinstance(plain, Mapping) and plain):
                self._read_table({} if plain is None else plain, inner, spelled, max(depth - 1, 0))
            else:
                put(self.layer, inner, Setting(plain, self.origin_of(spelled)))

    def _read_leaf(self, leaf: Leaf, value: Any, path: Path, raw: Path) -> None:
        if leaf.value_type is bool and type(value) is int and value in (0, 1):
            value = bool(value)
        if get_origin(leaf.value_type) is list and isinstance(value, str):
            value = [value]
        if leaf.accepts(value):
            put(self.layer, path, Setting(value, self.origin_of(raw)))
        else:
            given = "a value that is not shown" if leaf.is_secret else describe_value(value)
            self._complain(path, raw, f"{'.'.join(path)}: given {given}; accepted: {leaf.accepted()}{_quoting_hint(leaf, value)}")

    def _spelled_once(self, table: Mapping[Any, Any], path: Path, raw: Path, *, dashes: bool = True) -> list[tuple[str, Any]]:
        kept: dict[str, tuple[str, Any]] = {}
        for key, item in table.items():
            if not isinstance(key, str):
                self._complain(path, raw, f"keys are text; {_title(path)} has the key {describe_value(key)}: put it in quotes")
                continue
            name = key.replace("-", "_") if dashes else key
            if name in kept:
                message = f"{_title(path)} has both {kept[name][0]!r} and {key!r}, two spellings of one key: keep one"
                self._complain((*path, name), (*raw, key), message)
            else:
                kept[name] = (key, item)
        return list(kept.values())

    def _complain(self, path: Path, raw: Path, message: str) -> None:
        self.problems.append(Problem(key=".".join(path) or None, where=self.origin_of(raw).where, message=message))


def _plain(value: Any) -> Any:
    """What Python callers may pass instead of plain data: paths, models, tuples."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    return list(value) if isinstance(value, tuple | set | frozenset) else value


def _title(path: Path) -> str:
    return f"[{'.'.join(path)}]" if path else "the top level"


def _accepted(branch: Branch) -> str:
    keys = ", ".join(branch.children)
    return (f"text ({branch.shorthand}), or " if branch.shorthand else "") + f"a table with the keys {keys}"


def _quoting_hint(leaf: Leaf, value: Any) -> str:
    wants_text = leaf.value_type is str
    return "; put it in quotes" if wants_text and not isinstance(value, str | list | Mapping) else ""
