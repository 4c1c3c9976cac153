"""How a model's own files say it is to be pooled: the `modules.json` of sentence-transformers.

What this file does not know: requests, models.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotwise.errors import InvalidRequestError, ModelLoadError
from slotwise.pooling_params import Pooling, PoolingParams

_MODES = {
    "pooling_mode_lasttoken": Pooling.LAST,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_cls_token": Pooling.CLS,
}
_MODE_PREFIX = "pooling_mode_"


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolingDefaults:
    """What holds where a request says nothing."""

    pooling: Pooling = Pooling.LAST
    normalize: bool = True
    obstacle: str | None = None
    """Why the model's own way cannot be followed; requests must then say how they want it."""

    def resolve(self, params: PoolingParams) -> PoolingParams:
        """A copy of a request's parameters without None, but for `dimensions`. Raises InvalidRequestError."""
        resolved = params.clone()
        resolved.check()
        if resolved.pooling is None:
            if self.obstacle is not None:
                raise InvalidRequestError(
                    f"{self.obstacle}; give pooling ({', '.join(Pooling)}) to get vectors that are not the model's own.", param="pooling"
                )
            resolved.pooling = self.pooling
        if resolved.normalize is None:
            resolved.normalize = self.normalize
        return resolved


def read_pooling_defaults(folder: Path) -> PoolingDefaults:
    """folder: of the model's files. Raises ModelLoadError for a file that is no JSON."""
    modules = _read(folder / "modules.json")
    if not isinstance(modules, list):
        return PoolingDefaults()
    entries = [module for module in modules if isinstance(module, dict)]
    kinds = [(str(entry.get("type", "")).rpartition(".")[2], str(entry.get("path", ""))) for entry in entries]
    others = [kind for kind, _ in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    if others:
        return PoolingDefaults(obstacle=f"the model sends its vectors through {', '.join(others)}, which is not available")
    normalize = any(kind == "Normalize" for kind, _ in kinds)
    folders = [path for kind, path in kinds if kind == "Pooling"]
    config = _read(folder / folders[0] / "config.json") if folders else None
    if not isinstance(config, dict):
        return PoolingDefaults(normalize=normalize)
    chosen = _chosen_modes(config)
    if len(chosen) != 1 or chosen[0] not in _MODES:
        return PoolingDefaults(normalize=normalize, obstacle=f"the model's own pooling is {' and '.join(chosen)}, which is not available")
    return PoolingDefaults(pooling=_MODES[chosen[0]], normalize=normalize)


def _chosen_modes(config: dict[str, Any]) -> list[str]:
    """Names of the modes that are switched on, in both spellings there are."""
    mode = config.get("pooling_mode")
    if isinstance(mode, str):
        short = {"lasttoken": "pooling_mode_lasttoken", "mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
        return [short.get(mode, mode)]
    return [key for key, value in config.items() if key.startswith(_MODE_PREFIX) and value is True]


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}. Fetch the file again.") from error
