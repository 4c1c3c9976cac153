"""Configuration files: the format goes by the suffix, every fault names file and line.

This file does not know what the settings mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath

from slotwise.config.document import Document, SyntaxFault
from slotwise.config.json_file import parse_json
from slotwise.config.layers import Layer
from slotwise.config.origins import Origin
from slotwise.config.problems import describe_value, raise_problems
from slotwise.config.shape import Path
from slotwise.config.toml_file import parse_toml
from slotwise.config.typed_tree import TreeReader
from slotwise.config.yaml_file import parse_yaml
from slotwise.errors import ConfigError
from slotwise.plugin.suggestions import did_you_mean

PARSERS: Mapping[str, Callable[[str], Document]] = {".toml": parse_toml, ".yaml": parse_yaml, ".yml": parse_yaml, ".json": parse_json}
MAX_FILE_BYTES = 4 * 2**20


def read_file(path: str | os.PathLike[str]) -> Layer:
    """The layer a file makes. Raises ConfigError naming file and line of every fault."""
    document = parse_file(path)

    def origin_of(raw: Path) -> Origin:
        line = document.line_of(raw)
        return Origin(kind="file", where=f"{os.fspath(path)}:{line}" if line else os.fspath(path))

    reader = TreeReader(origin_of=origin_of)
    reader.read(document.tree)
    raise_problems(reader.problems)
    return reader.layer


def parse_file(path: str | os.PathLike[str]) -> Document:
    """Parse a file by its suffix. Raises ConfigError."""
    name = os.fspath(path)
    parser = PARSERS.get(FilePath(path).suffix.lower())
    text = _read_text(FilePath(path))
    if parser is None:
        raise ConfigError(f"{name}: the format goes by the suffix; {FilePath(path).suffix!r} is none of {', '.join(PARSERS)}")
    try:
        document = parser(text)
    except SyntaxFault as fault:
        place = f"{name}:{fault.line}" if fault.line else name
        raise ConfigError(f"{place}: not valid {FilePath(path).suffix[1:].upper()}: {fault}") from fault
    if document.tree is None:
        return Document(tree={}, lines={})
    if not isinstance(document.tree, Mapping):
        raise ConfigError(f"{name}: a configuration is a table of sections; the file holds {describe_value(document.tree)}")
    return document


def _read_text(path: FilePath) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES // 2**20} MiB, so hardly a configuration file")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file.{_similar_file(path)}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from error


def _similar_file(path: FilePath) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix.lower() in PARSERS]
    except OSError:
        return " Its directory does not exist or cannot be read."
    return did_you_mean(path.name, names)
