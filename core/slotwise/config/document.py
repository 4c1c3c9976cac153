"""A configuration file as parsed: the tree and the line of each key. Formats are read by `toml_file`, `yaml_file` and `json_file`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slotwise.config.shape import Path


class SyntaxFault(Exception):  # noqa: N818 - becomes a ConfigError once the file's name is known
    """The text is not of its format: what is wrong, and on which line if known."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed file."""

    tree: Any
    """What the text says; a mapping in every usable file."""
    lines: dict[Path, int]
    """Path as spelled in the file -> line, counted from 1."""

    def line_of(self, path: Path) -> int | None:
        """Line of the key at `path`, or of the closest table around it that has one."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None
