"""Commands as installed metadata lists them: group `slotwise.cli`, name -> a function or a Typer app.

Listing imports nothing, and neither does the one-line summary of a command: it is read from the text of its module. This file does not know
which commands exist.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from slotwise.errors import ComponentConflictError, PluginError
from slotwise.plugin.discovery import registering_distributions

GROUP = "slotwise.cli"


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandEntry:
    """One command that a distribution registers."""

    name: str
    value: str
    """`"module:object"`."""
    distribution: str
    version: str

    @property
    def origin(self) -> str:
        return f"{self.distribution} {self.version}".rstrip()

    def load(self) -> Any:
        """Import the module and return the object. Raises PluginError naming the distribution."""
        try:
            return metadata.EntryPoint(name=self.name, value=self.value, group=GROUP).load()
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"The command {self.name!r} of {self.origin} cannot be imported ({self.value}): {type(error).__name__}: {error}. "
                f"Repair or uninstall {self.distribution}; the other commands still work."
            ) from error


def discover_commands(path: Sequence[str] | None = None) -> dict[str, tuple[CommandEntry, ...]]:
    """Name -> every distribution's entry of that name, sorted. path: folders to look in, `sys.path` by default."""
    found: dict[str, set[CommandEntry]] = {}
    for distribution in registering_distributions(path):
        for entry in distribution.entry_points:
            if entry.group == GROUP:
                origin = distribution.metadata
                command = CommandEntry(name=entry.name, value=entry.value, distribution=origin["Name"], version=origin["Version"] or "")
                found.setdefault(entry.name, set()).add(command)
    return {name: tuple(sorted(found[name], key=lambda entry: entry.distribution)) for name in sorted(found)}


def only_entry(entries: Sequence[CommandEntry]) -> CommandEntry:
    """The entry to run. Raises ComponentConflictError if several distributions register the name."""
    if len(entries) > 1:
        names = " and ".join(entry.origin for entry in entries)
        raise ComponentConflictError(f"The command {entries[0].name!r} is registered by {names}. Uninstall one of them.")
    return entries[0]


def summary(entry: CommandEntry) -> str:
    """First line of the documentation of the command, read without importing it; where it comes from if there is none to read."""
    fallback = f"From {entry.origin}."
    module, _, attribute = entry.value.partition(":")
    source = _source_of(module.strip())
    if source is None:
        return fallback
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return fallback
    text = _documentation(tree, attribute.strip()) or ast.get_docstring(tree) or fallback
    return text.strip().splitlines()[0]


def _source_of(module: str) -> Path | None:
    """The file of a module, found on the import path without running its parents."""
    path: Sequence[str] | None = None
    origin: str | None = None
    for length in range(1, module.count(".") + 2):
        spec = PathFinder.find_spec(".".join(module.split(".")[:length]), path)
        if spec is None:
            return None
        path, origin = spec.submodule_search_locations, spec.origin
    return Path(origin) if origin is not None and origin.endswith(".py") else None


def _documentation(tree: ast.Module, name: str) -> str | None:
    """Docstring of the function, or the `help=` of the Typer app, that `name` is in the module."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call) and _assigns(node, name):
            for keyword in node.value.keywords:
                if keyword.arg == "help" and isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str):
                    return keyword.value.value
    return None


def _assigns(node: ast.Assign | ast.AnnAssign, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)
