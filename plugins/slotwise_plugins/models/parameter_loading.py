"""Giving a meta-device transformers model real memory, and filling it from named tensors.

What this file does not know: file formats, attention.
"""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from slotwise.errors import ModelLoadError, WeightsError
from slotwise.interfaces.linear import BlockRows
from slotwise.interfaces.model import ProgressCallback, Weights

logger = logging.getLogger(__name__)

_OBSOLETE_NAMES = (re.compile(r"rotary_emb\.inv_freq$"), re.compile(r"\.attn\.(masked_)?bias$"))
"""Buffers that older releases of transformers stored, and newer ones compute."""
_MOST_NAMES_SHOWN = 8


def materialize(model: Any, device: str) -> None:
    """Replace meta tensors by memory on `device`: parameters uninitialised and tied anew, computed buffers (rotary tables) recomputed.

    Computed buffers are no part of any checkpoint. transformers recomputes them in `_init_weights` of the model that owns the
    module; they are set to NaN before, so that one that is not recomputed is an error and not nonsense text.
    """
    model.to_empty(device=device)
    model.tie_weights()
    buffers = _computed_buffers(model)
    for buffer in buffers.values():
        buffer.fill_(math.nan if buffer.is_floating_point() else -1)
    with torch.no_grad():
        for module, owner in _owners(model):
            if any(True for _ in module.buffers(recurse=False)):
                owner._init_weights(module)
    lost = [name for name, buffer in _computed_buffers(model).items() if buffer.is_floating_point() and bool(buffer.isnan().any())]
    if lost:
        raise ModelLoadError(
            f"{type(model).__name__}: transformers does not recompute {_listed(lost)}, which no checkpoint holds; "
            "the model cannot be built without its weights. Please report this architecture."
        )


def _computed_buffers(model: Any) -> dict[str, torch.Tensor]:
    stored = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name not in stored}


def _owners(model: Any) -> list[tuple[torch.nn.Module, Any]]:
    """Each module with the innermost transformers model around it, whose `_init_weights` knows it."""
    pairs: list[tuple[torch.nn.Module, Any]] = []

    def walk(module: torch.nn.Module, owner: Any) -> None:
        owner = module if isinstance(module, PreTrainedModel) else owner
        pairs.append((module, owner))
        for child in module.children():
            walk(child, owner)

    walk(model, model)
    return pairs


@dataclass(slots=True)
class ParameterLoader:
    """Fills one model, and tells what did not fit."""

    model: Any
    targets: dict[str, torch.Tensor] = field(init=False)
    """Name -> memory to fill. Of tied names only one, the source."""
    tied: dict[str, str] = field(init=False)
    """Tied name -> name of its source."""
    loaded: set[str] = field(default_factory=set)
    unexpected: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    held_back: dict[str, torch.Tensor | BlockRows] = field(default_factory=dict)
    """Stored under a tied name, to be compared with the source when all is read."""

    def __post_init__(self) -> None:
        by_memory: dict[int, str] = {}
        self.targets, self.tied = {}, {}
        for name, tensor in sorted(self.model.state_dict(keep_vars=True).items(), key=lambda item: self._is_declared_tied(item[0])):
            source = by_memory.setdefault(id(tensor), name)
            if source == name:
                self.targets[name] = tensor.detach()
            else:
                self.tied[name] = source

    def _is_declared_tied(self, name: str) -> bool:
        return name in getattr(self.model, "all_tied_weights_keys", {})

    def load(self, weights: Weights, progress: ProgressCallback | None) -> None:
        """Copy every tensor of `weights` to its place. Raises WeightsError naming what is missing, left over or of the wrong shape."""
        for done, (name, tensor) in enumerate(weights.tensors(), start=1):
            self._place(self._known_name(name), tensor)
            if progress is not None:
                progress(done, weights.num_tensors)
        for name, tensor in self.held_back.items():
            self._settle_tied(name, tensor)
        self._report(missing=sorted(self.targets.keys() - self.loaded))

    def _known_name(self, name: str) -> str:
        """The model's name for a stored one: checkpoints of the bare model lack the prefix, or have one too many."""
        prefix = f"{self.model.base_model_prefix}."
        candidates = (name, prefix + name, name.removeprefix(prefix))
        return next((candidate for candidate in candidates if candidate in self.targets or candidate in self.tied), name)

    def _place(self, name: str, tensor: torch.Tensor | BlockRows) -> None:
        if name in self.tied:
            self.held_back[name] = tensor
        elif name not in self.targets:
            if not self._is_ignorable(name):
                self.unexpected.append(name)
        elif tensor.shape != self.targets[name].shape:
            self.misshapen.append(f"{name} is {list(tensor.shape)}, not {list(self.targets[name].shape)}")
            self.loaded.add(name)
        else:
            self.store(name, tensor)
            self.loaded.add(name)

    def store(self, name: str, tensor: torch.Tensor | BlockRows) -> None:
        """Put a tensor of the right shape where it belongs. Rows in blocks come only to models that claim `takes_blocks`."""
        assert isinstance(tensor, torch.Tensor)
        self.targets[name].copy_(tensor)

    def _settle_tied(self, name: str, tensor: torch.Tensor | BlockRows) -> None:
        """A tensor stored beside the one it is tied to: the source wins; it serves alone only where the source is not stored."""
        source = self.tied[name]
        if source not in self.loaded:
            self._place(source, tensor)
        elif not self._equals_stored(source, tensor):
            logger.warning("%s is tied to %s by the model's config, but the checkpoint stores another value; it is not used", name, source)

    def _equals_stored(self, name: str, tensor: torch.Tensor | BlockRows) -> bool:
        assert isinstance(tensor, torch.Tensor)
        kept = self.targets[name]
        return tensor.shape == kept.shape and torch.equal(tensor.to(kept), kept)

    def _is_ignorable(self, name: str) -> bool:
        ignored = getattr(self.model, "_keys_to_ignore_on_load_unexpected", None) or ()
        return any(re.search(pattern, name) for pattern in (*_OBSOLETE_NAMES, *ignored))

    def _report(self, missing: list[str]) -> None:
        faults = [
            f"{label}: {_listed(names)}"
            for label, names in (("missing", missing), ("not part of the model", self.unexpected), ("of the wrong shape", self.misshapen))
            if names
        ]
        if faults:
            self._refuse_other_form()
            raise WeightsError(
                f"The weights do not match {type(self.model).__name__}. Tensors {'; '.join(faults)}. "
                "Check that config and weights come from the same model, and that the download is complete."
            )

    def _refuse_other_form(self) -> None:
        """Raises WeightsError if what is left over is what transformers would rename or merge for this architecture."""
        from transformers.conversion_mapping import get_model_conversion_mapping  # needed for this message alone

        transforms = get_model_conversion_mapping(self.model, add_legacy=False)
        unconverted = [name for name in self.unexpected if self._known_name(_converted_name(name, transforms)) in self.targets]
        if unconverted:
            raise WeightsError(
                f"The checkpoint stores {_listed(unconverted)} in another form than {type(self.model).__name__} of the installed "
                "transformers holds them, and this component does not convert. Checkpoints of this architecture load only under the "
                "model's own tensor names and shapes. Convert it once: load it with transformers' `from_pretrained`, and save the model's "
                "`state_dict()` with safetensors (`save_pretrained` would write the old form again)."
            )


def _converted_name(name: str, transforms: list[Any]) -> str:
    """What transformers would call a stored tensor, or the tensor it would merge it into."""
    for transform in transforms:
        name, _ = transform.rename_source_key(name)
    return name


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES_SHOWN
    return ", ".join(names[:_MOST_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
