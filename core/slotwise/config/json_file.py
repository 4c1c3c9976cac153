"""JSON text -> tree and line numbers. `json` judges the text; a scan over its tokens finds lines and keys given twice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from slotwise.config.document import Document, SyntaxFault
from slotwise.config.shape import Path

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def parse_json(text: str) -> Document:
    """Raises SyntaxFault."""
    try:
        tree = json.loads(text, parse_constant=_refuse_constant) if text.strip() else {}
    except json.JSONDecodeError as error:
        raise SyntaxFault(error.msg, error.lineno) from error
    except ValueError as error:
        raise SyntaxFault(str(error), None) from error
    except RecursionError as error:
        raise SyntaxFault("nested too deeply", None) from error
    return Document(tree=tree, lines=_find_lines(text))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _find_lines(text: str) -> dict[Path, int]:
    """Path of every key -> its line. `text` is known to be valid JSON."""
    lines: dict[Path, int] = {}
    path: list[str] = []
    tables: list[set[str] | None] = []
    """One entry per open bracket: the keys of an object, None for an array."""
    previous = ""
    for token, line in _tokens(text):
        if token in "{[":
            tables.append(set() if token == "{" else None)
            path.append("")
        elif token in "}]":
            tables.pop()
            path.pop()
        elif token == ":":
            key: Any = json.loads(previous)
            keys = tables[-1]
            if keys is not None and key in keys:
                raise SyntaxFault(f"the key {key!r} is given twice in one table", line)
            if keys is not None:
                keys.add(key)
            path[-1] = key
            lines[tuple(path)] = line
        previous = token
    return lines


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    line, position = 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", position, match.start())
        position = match.start()
        yield match.group(), line
