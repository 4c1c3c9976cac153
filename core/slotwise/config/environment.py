"""The only place where environment variables are read: `SLOTWISE_KV_CACHE__BLOCK_SIZE=32` sets `kv_cache.block_size`.

A name is the path in capitals, `__` between its parts. A variable that names nothing known is an error, since a misspelt one would
otherwise do nothing in silence. An empty variable counts as not set. Names are read in lower case, so
options with capitals or `__` in their names are given as JSON: `SLOTWISE_ATTENTION__OPTIONS='{"K": 1}'`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from slotwise.config.layers import Layer
from slotwise.config.origins import Origin
from slotwise.config.problems import Problem, raise_problems
from slotwise.config.shape import Path, Table, engine_shape, values_below, walk
from slotwise.config.text_value import TextReader
from slotwise.plugin.suggestions import did_you_mean

PREFIX = "SLOTWISE_"
DELIMITER = "__"
PROCESS_VARIABLES = {"SLOTWISE_CACHE": "Directory of derived files; by default ~/.cache/slotwise."}
"""Variables that are no settings of the engine, so not part of the tree."""


def process_environ() -> Mapping[str, str]:
    """The environment of this process."""
    return os.environ


def variable_name(path: Path) -> str:
    """The variable that sets the value at `path`."""
    return PREFIX + DELIMITER.join(path).upper()


def read_environment(environ: Mapping[str, str]) -> Layer:
    """The layer the environment makes. Raises ConfigError naming each variable that is not usable."""
    layer: Layer = {}
    problems: list[Problem] = []
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in PROCESS_VARIABLES or not environ[name]:
            continue
        path = tuple(name.removeprefix(PREFIX).lower().split(DELIMITER))
        if not _is_known(path):
            problems.append(Problem(key=None, where=name, message=_unknown(name)))
            continue
        reader = TextReader()
        reader.read(path, environ[name], Origin(kind="environment", where=name))
        problems += reader.problems
        for inner, setting in reader.layer.items():
            if inner in layer:
                message = f"{layer[inner].origin.where} sets {'.'.join(inner)!r} too: keep one of the two"
                problems.append(Problem(key=".".join(inner), where=name, message=message))
            layer[inner] = setting
    raise_problems(problems)
    return layer


def _is_known(path: Path) -> bool:
    shape, _, rest = walk(path)
    return not rest or (isinstance(shape, Table) and "" not in rest)


def _unknown(name: str) -> str:
    known = [variable_name(known_path) for known_path, _ in values_below(engine_shape())] + list(PROCESS_VARIABLES)
    known += [variable_name((section,)) for section in engine_shape().children]
    squeezed = {candidate.replace(DELIMITER, "_"): candidate for candidate in known}
    same_words = squeezed.get(name.replace(DELIMITER, "_"))
    hint = f' Did you mean "{same_words}"?' if same_words else did_you_mean(name, known)
    return f"the variable names no setting.{hint} A name is {PREFIX}SECTION{DELIMITER}KEY, with two underscores between section and key"


def is_triton_interpreted() -> bool:
    """Whether Triton runs its kernels in its interpreter, on the CPU (its own variable, `TRITON_INTERPRET`)."""
    return process_environ().get("TRITON_INTERPRET") == "1"
