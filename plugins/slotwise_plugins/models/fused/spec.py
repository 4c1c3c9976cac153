"""A decoder as data: what a model of the transformers library computes, in the terms of `decoder`.

Read from the library's own modules, which lie on the meta device, so that names, shapes and rotary tables are those of the library.
What this file does not know: parameters' values, how anything is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from slotwise.errors import ModelLoadError
from slotwise_plugins.models.fused.families import FAMILIES, Family
from slotwise_plugins.native.library import ACTIVATIONS


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSpec:
    """One layer. Names are of parameters; several are stacked, row under row."""

    qkv: tuple[str, ...]
    output: str
    gate_up: tuple[str, ...]
    down: str
    attention_norm: str
    mlp_norm: str
    attention_norm_after: str | None
    """None = the output is added as it is."""
    mlp_norm_after: str | None
    query_norm: str | None
    key_norm: str | None
    rope: str | None
    """Which rotary table; None = no rotation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderSpec:
    """A whole model."""

    family: Family
    layers: tuple[LayerSpec, ...]
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    activation: str
    """Key of `ACTIVATIONS`."""
    embedding_scale: float
    logits_soft_cap: float | None
    embedding: str
    final_norm: str
    head: str
    ropes: tuple[str, ...]
    """Names of rotary tables; "" where there is one."""


def decoder_spec(model: Any) -> DecoderSpec:
    """model: a causal LM of transformers, on any device. Raises ModelLoadError for what this decoder does not compute."""
    config = model.config.get_text_config()
    name = type(model).__name__
    family = FAMILIES.get(name)
    if family is None:
        raise ModelLoadError(f"the model component fused does not compute {name}; it knows {', '.join(FAMILIES)}. Use transformers.")
    activation = getattr(config, "hidden_activation", None) or config.hidden_act
    if activation not in ACTIVATIONS:
        raise ModelLoadError(f"{name} has the activation {activation!r}; the model component fused knows {', '.join(ACTIVATIONS)}.")
    names = {id(module): path for path, module in model.named_modules()}
    decoder = model.get_decoder()
    first = decoder.layers[0]
    head_dim = int(first.self_attn.head_dim)
    ropes = tuple(sorted(set(config.layer_types))) if hasattr(decoder.rotary_emb, "layer_types") else ("",)
    return DecoderSpec(
        family=family,
        layers=tuple(
            _layer(layer, names, family, config.layer_types[index] if ropes != ("",) else "") for index, layer in enumerate(decoder.layers)
        ),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        norm_eps=config.rms_norm_eps,
        activation=activation,
        embedding_scale=_embedding_scale(config, family, model.dtype),
        logits_soft_cap=getattr(config, "final_logit_softcapping", None),
        embedding=f"{names[id(decoder.embed_tokens)]}.weight",
        final_norm=f"{names[id(decoder.norm)]}.weight",
        head=f"{names[id(model.get_output_embeddings())]}.weight",
        ropes=ropes,
    )


def _layer(layer: Any, names: dict[int, str], family: Family, rope: str) -> LayerSpec:
    """rope: name of the rotary table, if the layer rotates."""
    attention, mlp = layer.self_attn, layer.mlp

    def path(owner: Any, *children: str) -> tuple[str, ...]:
        return tuple(names[id(getattr(owner, child))] for child in children)

    def weight(owner: Any, child: str) -> str:
        return f"{names[id(getattr(owner, child))]}.weight"

    rotates = getattr(attention, "use_rope", 1)
    return LayerSpec(
        qkv=path(attention, "qkv_proj") if hasattr(attention, "qkv_proj") else path(attention, "q_proj", "k_proj", "v_proj"),
        output=path(attention, "o_proj")[0],
        gate_up=path(mlp, "gate_up_proj") if hasattr(mlp, "gate_up_proj") else path(mlp, "gate_proj", "up_proj"),
        down=path(mlp, "down_proj")[0],
        attention_norm=weight(layer, "input_layernorm"),
        mlp_norm=weight(layer, "pre_feedforward_layernorm" if family.norms_after else "post_attention_layernorm"),
        attention_norm_after=weight(layer, "post_attention_layernorm") if family.norms_after else None,
        mlp_norm_after=weight(layer, "post_feedforward_layernorm") if family.norms_after else None,
        query_norm=weight(attention, "q_norm") if family.normalizes_heads else None,
        key_norm=weight(attention, "k_norm") if family.normalizes_heads else None,
        rope=rope if rotates else None,
    )


def _embedding_scale(config: Any, family: Family, dtype: torch.dtype) -> float:
    """As the library has it: rounded to the model's dtype."""
    return float(torch.tensor(config.hidden_size**0.5, dtype=dtype)) if family.scales_embedding else 1.0
