"""The families that `fused` computes, and how they differ. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """What its config does not say."""

    norms_after: bool = False
    """Attention and MLP outputs are normalised before they are added (Gemma 2 and 3)."""
    norm_adds_one: bool = False
    """Norms multiply by 1 + weight."""
    scales_embedding: bool = False
    """Embeddings are multiplied by the root of the hidden size."""
    normalizes_heads: bool = False
    """Queries and keys are normalised head by head before rotation."""


_LLAMA = Family()
_GEMMA2 = Family(norms_after=True, norm_adds_one=True, scales_embedding=True)
FAMILIES = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _LLAMA,
    "Qwen3ForCausalLM": Family(normalizes_heads=True),
    "Phi3ForCausalLM": _LLAMA,
    "SmolLM3ForCausalLM": _LLAMA,
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma3ForCausalLM": Family(norms_after=True, norm_adds_one=True, scales_embedding=True, normalizes_heads=True),
}
"""Architecture -> family."""
