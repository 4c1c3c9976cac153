"""The tree of known settings, read off `EngineConfig`: which keys a section has, and what each value may be.

Every source (file, environment, flags) is checked against it. This file does not know where values come from.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from slotwise.config.engine_config import ComponentChoice, EngineConfig, Section

Path = tuple[str, ...]
"""Keys from the root to a value, spelled with underscores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaf:
    """One value."""

    field: FieldInfo

    @property
    def value_type(self) -> Any:
        """The annotation without None."""
        return _without_none(self.field.annotation)

    @property
    def is_secret(self) -> bool:
        """Whether the value must not be printed."""
        extra = self.field.json_schema_extra
        return isinstance(extra, dict) and extra.get("writeOnly") is True

    def accepts(self, value: Any) -> bool:
        """Whether `value` is of the right type and in range; text is never taken for a number or a switch."""
        annotation = self.field.annotation
        try:
            _adapter(annotation, tuple(self.field.metadata)).validate_python(value, strict=True)
        except ValidationError:
            return False
        return True

    def accepted(self) -> str:
        """What may be written, in words."""
        return describe_type(self.value_type) + _describe_range(self.field.metadata)


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """An open table whose keys only a component's options model knows; keys are spelled with underscores down to `depth`."""

    depth: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Branch:
    """A section with known keys."""

    children: Mapping[str, Shape]
    section: type[Section] | None
    """None for a table of alternatives (`per_kind`, `per_phase`), whose keys may be absent."""

    @property
    def shorthand(self) -> str | None:
        """The key that a bare value in place of the whole section stands for."""
        return None if self.section is None else self.section.shorthand


Shape = Leaf | Table | Branch


@functools.cache
def engine_shape() -> Branch:
    """The shape of `EngineConfig`."""
    return _branch(EngineConfig)


def walk(path: Path) -> tuple[Shape, Path, Path]:
    """Follow `path` from the root as far as it is known: what is there, the part followed, the rest.

    The rest is empty for a known value or section, lies inside a component's options if what is there is a Table, and is unknown otherwise.
    """
    shape: Shape = engine_shape()
    for position, key in enumerate(path):
        if not isinstance(shape, Branch) or key not in shape.children:
            return shape, path[:position], path[position:]
        shape = shape.children[key]
    return shape, path, ()


def values_below(branch: Branch, prefix: Path = ()) -> Iterator[tuple[Path, Shape]]:
    """Every value and table below `branch`, in the order of the file, with its path."""
    for key, child in branch.children.items():
        if isinstance(child, Branch):
            yield from values_below(child, (*prefix, key))
        else:
            yield (*prefix, key), child


def describe_type(annotation: Any) -> str:
    """A type in words, as error messages and comments use it."""
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(map(str, get_args(annotation)))
    if get_origin(annotation) is list:
        return "a list of text"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}.get(annotation, "a value")


def _branch(section: type[Section]) -> Branch:
    children = {name: _shape(field) for name, field in section.model_fields.items()}
    return Branch(children=children, section=section)


def _shape(field: FieldInfo) -> Shape:
    annotation = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return _branch(annotation)
    if get_origin(annotation) is not dict:
        return Leaf(field=field)
    key_type, value_type = get_args(annotation)
    if get_origin(key_type) is Literal:
        return Branch(children={key: _branch(ComponentChoice) for key in get_args(key_type)}, section=None)
    return Table(depth=2 if get_origin(value_type) is dict else 1)


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        kept = [kind for kind in get_args(annotation) if kind is not type(None)]
        return kept[0] if len(kept) == 1 else annotation
    return annotation


def _describe_range(metadata: list[Any]) -> str:
    words = []
    for item in metadata:
        for sign, name in ((">=", "ge"), (">", "gt"), ("<=", "le"), ("<", "lt")):
            bound = getattr(item, name, None)
            if bound is not None:
                words.append(f"{sign} {bound}")
    return " " + " and ".join(words) if words else ""


def _adapter(annotation: Any, metadata: tuple[Any, ...]) -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[(annotation, *metadata)] if metadata else annotation)
