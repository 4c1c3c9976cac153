"""The message for a key that no section has: the nearest known one, the section that has it, and all keys of the section."""

from __future__ import annotations

from slotwise.config.shape import Branch, Path, engine_shape
from slotwise.plugin.suggestions import did_you_mean


def unknown_key(name: str, section: Path, branch: Branch) -> str:
    """`name` was written in `section`, whose keys are those of `branch`."""
    title = f"[{'.'.join(section)}]" if section else "the top level"
    return f"unknown key {'.'.join((*section, name))!r}.{_hint(name, section, branch)} Keys of {title}: {', '.join(branch.children)}"


def _hint(name: str, section: Path, branch: Branch) -> str:
    nearest = did_you_mean(name, list(branch.children))
    if nearest:
        return nearest
    elsewhere = [".".join(path) for path in _sections_with(name) if path[:-1] != section]
    return f" Did you mean {' or '.join(repr(path) for path in elsewhere)}?" if elsewhere else ""


def _sections_with(name: str) -> list[Path]:
    root = engine_shape()
    sections = {key: child for key, child in root.children.items() if isinstance(child, Branch)}
    inside: list[Path] = [(key, name) for key, child in sections.items() if name in child.children and name not in ("use", "options")]
    return [(name,), *inside] if name in root.children else inside
