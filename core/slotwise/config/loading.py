"""`load_config`: all sources, strongest last, into one `EngineConfig` and the origin of every value.

Precedence: Python keywords, then `--set`, then `SLOTWISE_*` variables, then the file, then the defaults. Each source is checked on its own,
so a wrong value is an error even where a stronger source would hide it. What this file does not know: formats, types, components.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from slotwise.config.consistency import inconsistencies
from slotwise.config.engine_config import EngineConfig
from slotwise.config.environment import process_environ, read_environment
from slotwise.config.files import read_file
from slotwise.config.flags import read_set_values
from slotwise.config.keywords import read_keywords
from slotwise.config.layers import Layer, Merged, merge, nest
from slotwise.config.origins import DEFAULT, Origin, Origins
from slotwise.config.problems import Problem, raise_problems
from slotwise.config.shape import Path
from slotwise.config.values import flat_values
from slotwise.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A resolved configuration, and where each of its values came from."""

    config: EngineConfig
    origins: Origins


def load_config(
    path: str | os.PathLike[str] | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    set_values: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """Resolve a configuration.

    path: a .toml, .yaml, .yml or .json file; None = no file. overrides: keyword -> value as Python callers give it; nested tables or dotted
    keys. set_values: `SECTION.KEY=VALUE` texts. environ: the process's own by default; `{}` = none.

    Raises ConfigError (InvalidConfigError, which lists every fault) naming source, dotted key, what was given and what is accepted. Does
    not look for the components that are named; `slotwise.config.components` does.
    """
    layers: list[Layer] = [
        read_file(path) if path is not None else {},
        read_environment(process_environ() if environ is None else environ),
        read_set_values(set_values),
        read_keywords(overrides or {}),
    ]
    merged = merge(layers)
    try:
        config = EngineConfig.model_validate(nest(merged.settings))
    except ValidationError as error:
        raise ConfigError(f"the settings do not fit together: {error}") from error
    origins = _origins(config, merged)
    raise_problems([Problem(key=key, where=str(origins[key]), message=message) for key, message in inconsistencies(config)])
    return LoadedConfig(config=config, origins=origins)


def _origins(config: EngineConfig, merged: Merged) -> Origins:
    origins = {path: _origin(path, merged) for path in flat_values(config)}
    return Origins({".".join(path): origin for path, origin in origins.items()}, merged.dropped)


def _origin(path: Path, merged: Merged) -> Origin:
    if path in merged.settings:
        return merged.settings[path].origin
    for length in range(len(path), 0, -1):
        unset = merged.unset.get(path[:length])
        if unset is not None:
            return Origin(kind="default", where=f"unset by {unset}")
    dropped = [item.by for item in merged.dropped if item.key.startswith(".".join(path) + ".")]
    return Origin(kind="default", where=f"options of another component dropped: {dropped[-1]}") if dropped else DEFAULT
