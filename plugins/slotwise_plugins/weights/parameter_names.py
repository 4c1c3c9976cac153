"""Names and shapes of a model's parameters, from its config alone."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from slotwise.errors import WeightsError


def parameter_shapes(hf_config: Any) -> dict[str, tuple[int, ...]]:
    """Name -> shape of everything a checkpoint of the model holds, tied tensors once. Raises WeightsError for an unknown architecture."""
    return dict(_shapes(hf_config.__class__, hf_config.to_json_string(use_diff=False)))


@lru_cache(maxsize=4)
def _shapes(config_class: Any, config_json: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config_class.from_dict(json.loads(config_json)), trust_remote_code=False)
    except (ValueError, ImportError, AttributeError, TypeError, KeyError) as error:
        raise WeightsError(f"transformers cannot build {config_class.__name__} to name its parameters: {error}") from error
    seen: set[int] = set()
    shapes = []
    tied = getattr(model, "all_tied_weights_keys", {})
    for name, tensor in sorted(model.state_dict(keep_vars=True).items(), key=lambda item: item[0] in tied):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            shapes.append((name, tuple(tensor.shape)))
    return tuple(shapes)
