"""Values written as text (environment variables, `--set`) turned into typed ones, by the type of the setting.

Rules. A switch is true, false, 1, 0, yes, no, on or off. A list is JSON or comma-separated. `null` unsets. A component's options,
whose types are not known here, are read as JSON where the text is valid JSON and as text elsewhere. A whole section may be given as a
JSON object.
"""

from __future__ import annotations

import json
from typing import Any, get_origin

from slotwise.config.layers import Layer, Setting, put
from slotwise.config.origins import Origin
from slotwise.config.problems import Problem, describe_value
from slotwise.config.shape import Branch, Leaf, Path, Table, walk
from slotwise.config.typed_tree import TreeReader
from slotwise.config.unknown_key import unknown_key

SWITCHES = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


class TextReader:
    """Collects a layer from (path, text) pairs; `layer` and `problems` hold the outcome."""

    def __init__(self) -> None:
        self.layer: Layer = {}
        self.problems: list[Problem] = []

    def read(self, path: Path, text: str, origin: Origin) -> None:
        """Read one pair. Raises nothing: faults go to `problems`."""
        shape, done, rest = walk(path)
        if isinstance(shape, Branch) and rest:
            self._complain((*done, rest[0]), origin, unknown_key(rest[0], done, shape))
        elif isinstance(shape, Leaf) and rest:
            self._complain(path, origin, f"{'.'.join(done)} is a single value and has no {'.'.join(rest)!r} inside")
        elif text.strip().lower() == "null":
            put(self.layer, (*done, *rest), Setting(None, origin))
        elif isinstance(shape, Leaf):
            self._read_leaf(shape, done, text, origin)
        elif rest:
            self._read_tree(shape, done, _nested(rest, json_or_text(text)), origin)
        elif isinstance(shape, Branch) and shape.shorthand is not None and not text.lstrip().startswith("{"):
            self.read((*done, shape.shorthand), text, origin)
        else:
            self._read_tree(shape, done, json_or_text(text), origin)

    def _read_leaf(self, leaf: Leaf, path: Path, text: str, origin: Origin) -> None:
        value = typed(leaf, text)
        if leaf.accepts(value):
            put(self.layer, path, Setting(value, origin))
            return
        given = "a value that is not shown" if leaf.is_secret else describe_value(text)
        switch = f" ({', '.join(SWITCHES)})" if leaf.value_type is bool else ""
        self._complain(path, origin, f"{'.'.join(path)}: given {given}; accepted: {leaf.accepted()}{switch}")

    def _read_tree(self, shape: Branch | Table, path: Path, value: Any, origin: Origin) -> None:
        reader = TreeReader(origin_of=lambda _: origin)
        reader.read_at(shape, value, path, path)
        self.problems += reader.problems
        for inner, setting in reader.layer.items():
            put(self.layer, inner, setting)

    def _complain(self, path: Path, origin: Origin, message: str) -> None:
        self.problems.append(Problem(key=".".join(path), where=origin.where, message=message))


def typed(leaf: Leaf, text: str) -> Any:
    """The text as the leaf's type; unchanged where it cannot be one (the leaf then refuses it)."""
    kind = leaf.value_type
    if kind is bool:
        return SWITCHES.get(text.strip().lower(), text)
    if get_origin(kind) is list:
        value = json_or_text(text)
        return value if isinstance(value, list) else [item.strip() for item in text.split(",") if item.strip()]
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return text
    return text


def json_or_text(text: str) -> Any:
    """The JSON value that `text` spells, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _nested(keys: Path, value: Any) -> Any:
    for key in reversed(keys):
        value = {key: value}
    return value
