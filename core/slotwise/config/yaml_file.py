"""YAML text -> tree and line numbers.

The safe subset that a configuration needs: one document, no tags that build objects, keys once each, no `<<` merges. PyYAML alone would let
the last of two equal keys win in silence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from yaml import SafeLoader
from yaml.error import MarkedYAMLError, YAMLError
from yaml.nodes import MappingNode, Node, SequenceNode

from slotwise.config.document import Document, SyntaxFault
from slotwise.config.shape import Path

MAX_NODES = 100_000
MAX_DEPTH = 100
"""Bounds of what aliases may unfold to."""


def parse_yaml(text: str) -> Document:
    """Raises SyntaxFault."""
    loader = SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return Document(tree={}, lines={})
        reader = _NodeReader(loader)
        return Document(tree=reader.read(node, ()), lines=reader.lines)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        raise SyntaxFault(error.problem or str(error), mark.line + 1 if mark else None) from error
    except (YAMLError, ValueError) as error:
        raise SyntaxFault(str(error), None) from error
    except RecursionError as error:
        raise SyntaxFault("nested too deeply", None) from error
    finally:
        loader.dispose()


@dataclass(slots=True)
class _NodeReader:
    loader: SafeLoader
    lines: dict[Path, int] = field(default_factory=dict)
    num_nodes: int = 0

    def read(self, node: Node, path: Path) -> Any:
        self.num_nodes += 1
        if self.num_nodes > MAX_NODES or len(path) > MAX_DEPTH:
            raise SyntaxFault("aliases unfold to too much", _line(node))
        self.lines.setdefault(path, _line(node))
        if isinstance(node, MappingNode):
            return self._read_mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self.read(item, (*path, str(index))) for index, item in enumerate(node.value)]
        return self.loader.construct_object(node, deep=True)

    def _read_mapping(self, node: MappingNode, path: Path) -> dict[Any, Any]:
        table: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise SyntaxFault("`<<` merges are not supported: write the keys out", _line(key_node))
            key = self.loader.construct_object(key_node, deep=True)
            if isinstance(key, list | dict):
                raise SyntaxFault("a key must be text", _line(key_node))
            if key in table:
                raise SyntaxFault(f"the key {key!r} is given twice in one table", _line(key_node))
            inner = (*path, str(key))
            self.lines[inner] = _line(key_node)
            table[key] = self.read(value_node, inner)
        return table


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1
