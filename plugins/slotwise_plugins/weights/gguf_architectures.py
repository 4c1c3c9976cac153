"""How llama.cpp's converter changed the tensors of each architecture, and how to undo it.

Adding an architecture: an entry in `ARCHITECTURES`, and a round trip in the tests. What this file does not know: files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

from slotwise.errors import WeightsError

Restore = Callable[[str, torch.Tensor, Any], torch.Tensor]
"""(GGUF name, tensor as stored, hf config) -> tensor as the Hugging Face model has it."""


def _unpermute_rotary_rows(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """Llama's query and key rows are stored with the two halves of each head interleaved (rotary pairs side by side).

    Stored row 2 i + j of a head is row j * head_dim / 2 + i of the original. Source: llama.cpp convert_hf_to_gguf.py, LlamaModel.permute.
    """
    if ".attn_q." in name:
        num_heads = config.num_attention_heads
    elif ".attn_k." in name:
        num_heads = config.num_key_value_heads
    else:
        return tensor
    pairs = tensor.reshape(num_heads, tensor.shape[0] // num_heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def _subtract_one_from_norms(name: str, tensor: torch.Tensor, _: Any) -> torch.Tensor:
    """Gemma multiplies by 1 + weight; the file stores 1 + weight."""
    return tensor - 1 if name.endswith("norm.weight") else tensor


def _transpose_projections(name: str, tensor: torch.Tensor, _: Any) -> torch.Tensor:
    """GPT-2 stores its projections [in, out] (Conv1D); the file has [out, in]."""
    is_projection = any(part in name for part in (".attn_qkv.", ".attn_output.", ".ffn_up.", ".ffn_down.")) and name.endswith(".weight")
    return tensor.T if is_projection else tensor


def _keep(_: str, tensor: torch.Tensor, __: Any) -> torch.Tensor:
    return tensor


ARCHITECTURES: dict[str, Restore] = {
    "llama": _unpermute_rotary_rows,
    "qwen2": _keep,
    "qwen3": _keep,
    "gemma": _subtract_one_from_norms,
    "gemma2": _subtract_one_from_norms,
    "gemma3": _subtract_one_from_norms,
    "phi3": _keep,
    "gpt2": _transpose_projections,
}
"""GGUF `general.architecture` -> how to restore its tensors. Mistral files say `llama`."""
ROWWISE = frozenset({_unpermute_rotary_rows, _keep, _subtract_one_from_norms})
"""Those that leave the elements of a matrix row together, so that they serve for rows in any encoding."""

COMPUTED_TENSORS = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
"""Tables that follow from the config's rope parameters."""


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """One file's architecture, joined with the model it is loaded into."""

    restore: Restore
    names: dict[str, str]
    """GGUF name -> Hugging Face name."""


def resolve_architecture(name: str, hf_config: Any, parameter_names: list[str], path: object) -> GgufArchitecture:
    """Raises WeightsError if the architecture is not supported."""
    restore = ARCHITECTURES.get(name)
    architecture = next((key for key, value in MODEL_ARCH_NAMES.items() if value == name), None)
    if restore is None or architecture is None:
        raise WeightsError(
            f"{path} holds architecture {name!r}; `gguf` weights support {', '.join(sorted(ARCHITECTURES))}. "
            "Use the model's safetensors files instead."
        )
    name_map = get_tensor_name_map(architecture, hf_config.num_hidden_layers)
    names = {}
    for parameter in parameter_names:
        stem, _, suffix = parameter.rpartition(".")
        stored = name_map.get_name(stem)
        if stored is not None:
            names[f"{stored}.{suffix}"] = parameter
    return GgufArchitecture(restore, names)
