"""A new configuration file with every setting at its default, its description as a comment above it.

Made from the model, so it cannot fall behind it. JSON has no comments: there it is the settings alone. This file writes text and
reads none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

from slotwise.config.engine_config import EngineConfig
from slotwise.config.shape import Branch, Leaf, Table, describe_type, engine_shape

INTRODUCTION = (
    "Slotwise configuration. Every value below is the default; keep the ones you change.",
    "Check it with `slotwise config check FILE`; see what will run with `slotwise explain FILE`.",
)


def render_template(file_format: str) -> str:
    """The text of a new file. file_format: a key of `FORMATS`."""
    return FORMATS[file_format]()


def _toml() -> str:
    lines = [f"# {line}" for line in INTRODUCTION] + [""]
    for key, leaf in _leaves(engine_shape()):
        lines += _toml_leaf(key, leaf, _defaults()[key])
    for name, section, defaults in _sections():
        lines += ["", f"# {_summary(section)}", f"[{name}]"]
        for key, leaf in _leaves(section):
            lines += _toml_leaf(key, leaf, defaults[key])
        for key, child in _others(section):
            lines.append(f"# {_description(section, key)}")
            if _is_section(child):
                lines += [line for inner, leaf in _leaves(child) for line in _toml_leaf(f"{key}.{inner}", leaf, defaults[key][inner])]
            else:
                lines += [f"# {line}" for line in _toml_example(name, key, child)]
    return "\n".join(lines) + "\n"


def _toml_leaf(key: str, leaf: Leaf, default: Any) -> list[str]:
    comment = f"# {leaf.field.description} ({leaf.accepted()})"
    return [comment, f"{key} = {json.dumps(default)}" if default is not None else f"# {key} ="]


def _toml_example(name: str, key: str, child: Table | Branch) -> list[str]:
    if isinstance(child, Branch):
        return [f"{key}.{part} = {json.dumps('auto')}" for part in child.children]
    return [f"[{name}.{key}]"]


def _yaml() -> str:
    lines = [f"# {line}" for line in INTRODUCTION] + [""]
    for key, leaf in _leaves(engine_shape()):
        lines += _yaml_leaf(key, leaf, _defaults()[key], "")
    for name, section, defaults in _sections():
        lines += ["", f"# {_summary(section)}", f"{name}:"]
        for key, leaf in _leaves(section):
            lines += _yaml_leaf(key, leaf, defaults[key], "  ")
        for key, child in _others(section):
            lines.append(f"  # {_description(section, key)}")
            if _is_section(child):
                inner_lines = [line for inner, leaf in _leaves(child) for line in _yaml_leaf(inner, leaf, defaults[key][inner], "    ")]
                lines += [f"  {key}:", *inner_lines]
            else:
                lines.append(f"  {key}: {{}}")
    return "\n".join(lines) + "\n"


def _yaml_leaf(key: str, leaf: Leaf, default: Any, indent: str) -> list[str]:
    return [f"{indent}# {leaf.field.description} ({leaf.accepted()})", f"{indent}{key}: {json.dumps(default)}"]


def _json() -> str:
    return json.dumps(_defaults(), indent=2) + "\n"


FORMATS: Mapping[str, Callable[[], str]] = {"toml": _toml, "yaml": _yaml, "json": _json}


def _defaults() -> dict[str, Any]:
    return EngineConfig().model_dump()


def _sections() -> Iterator[tuple[str, Branch, dict[str, Any]]]:
    defaults = _defaults()
    for name, child in engine_shape().children.items():
        if isinstance(child, Branch):
            yield name, child, defaults[name]


def _leaves(branch: Branch) -> Iterator[tuple[str, Leaf]]:
    return ((key, child) for key, child in branch.children.items() if isinstance(child, Leaf))


def _others(branch: Branch) -> list[tuple[str, Table | Branch]]:
    """Sections first: in TOML whatever follows a table's header belongs to the table."""
    others = [(key, child) for key, child in branch.children.items() if not isinstance(child, Leaf)]
    return sorted(others, key=lambda item: not _is_section(item[1]))


def _is_section(child: Table | Branch) -> TypeGuard[Branch]:
    """A section inside a section, not a table of alternatives."""
    return isinstance(child, Branch) and child.section is not None


def _summary(branch: Branch) -> str:
    assert branch.section is not None
    return (branch.section.__doc__ or "").strip().splitlines()[0]


def _description(branch: Branch, key: str) -> str:
    assert branch.section is not None
    return branch.section.model_fields[key].description or describe_type(None)
