"""TOML text -> tree and line numbers. `tomllib` parses; a scan over the lines finds where each key stands."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from slotwise.config.document import Document, SyntaxFault
from slotwise.config.shape import Path

_HEADER = re.compile(r"\s*\[\[?\s*(?P<keys>[^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_ASSIGNMENT = re.compile(rf"\s*(?P<keys>{_KEY}(?:\s*\.\s*{_KEY})*)\s*=")
_POSITION = re.compile(r"\s*\(at line (?P<line>\d+), column \d+\)$")


def parse_toml(text: str) -> Document:
    """Raises SyntaxFault."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        position = _POSITION.search(str(error))
        line = int(position["line"]) if position else None
        raise SyntaxFault(_POSITION.sub("", str(error)), line) from error
    except RecursionError as error:
        raise SyntaxFault("nested too deeply", None) from error
    return Document(tree=tree, lines=_find_lines(text))


def _find_lines(text: str) -> dict[Path, int]:
    lines: dict[Path, int] = {}
    table: Path = ()
    open_quotes = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not open_quotes and (header := _HEADER.match(line)):
            table = _split_keys(header["keys"])
            lines.setdefault(table, number)
        elif not open_quotes and (assignment := _ASSIGNMENT.match(line)):
            lines.setdefault((*table, *_split_keys(assignment["keys"])), number)
        open_quotes = _quotes_open_after(line, open_quotes)
    return lines


def _split_keys(keys: str) -> Path:
    """A dotted key as the parser reads it; () if this line only looked like one."""
    try:
        value: Any = tomllib.loads(f"{keys} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    path: list[str] = []
    while isinstance(value, dict):
        key, value = next(iter(value.items()))
        path.append(key)
    return tuple(path)


def _quotes_open_after(line: str, quotes: str) -> str:
    """The multi-line string delimiter that is open after `line`, or ''."""
    for found in re.findall(r"\"\"\"|\'\'\'", line):
        if not quotes:
            quotes = found
        elif found == quotes:
            quotes = ""
    return quotes
