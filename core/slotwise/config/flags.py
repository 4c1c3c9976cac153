"""`--set kv_cache.block_size=32`: settings given on the command line, one text per flag; of two for one key the later wins."""

from __future__ import annotations

from collections.abc import Sequence

from slotwise.config.layers import Layer
from slotwise.config.origins import Origin
from slotwise.config.problems import Problem, raise_problems
from slotwise.config.text_value import TextReader


def read_set_values(set_values: Sequence[str]) -> Layer:
    """The layer that `KEY=VALUE` texts make. Raises ConfigError naming every unusable one."""
    reader = TextReader()
    for text in set_values:
        key, equals, value = text.partition("=")
        path = tuple(part.strip().replace("-", "_") for part in key.split("."))
        if not equals or "" in path:
            message = f"given {text!r}; accepted: SECTION.KEY=VALUE, such as kv_cache.block_size=32"
            reader.problems.append(Problem(key=None, where="--set", message=message))
            continue
        reader.read(path, value, Origin(kind="command_line", where=f"--set {'.'.join(path)}"))
    raise_problems(reader.problems)
    return reader.layer
