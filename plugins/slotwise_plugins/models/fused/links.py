"""A decoder as chains: one before the first attention, one between each two, one after the last.

    hidden -> normed -> qkv -> rotated  ~ attention ~>  attended -> hidden
    hidden -> normed -> gate_up -> gated -> hidden

What this file does not know: how chains are run, who attends.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from slotwise_plugins.models.fused.parameters import Parameters
from slotwise_plugins.models.fused.rope_tables import no_rotation
from slotwise_plugins.models.fused.spec import DecoderSpec, LayerSpec
from slotwise_plugins.native.chain import Gate, Link, Multiply, Normalize, Rotate, RowsLayout
from slotwise_plugins.native.row_ops import HeadShape, RopeTable


def row_layouts(spec: DecoderSpec, dtype: torch.dtype) -> dict[str, RowsLayout]:
    """Hidden states and what comes out of matrices are float32; what goes into matrices and attention has the model's dtype."""
    query_width = spec.num_heads * spec.head_dim
    qkv_width = query_width + 2 * spec.num_kv_heads * spec.head_dim
    return {
        "hidden": RowsLayout(width=spec.hidden_size, dtype=torch.float32, is_whole=True),
        "normed": RowsLayout(width=spec.hidden_size, dtype=dtype),
        "qkv": RowsLayout(width=qkv_width, dtype=torch.float32),
        "rotated": RowsLayout(width=qkv_width, dtype=dtype, is_whole=True),
        "attended": RowsLayout(width=query_width, dtype=dtype, is_whole=True),
        "gate_up": RowsLayout(width=2 * spec.intermediate_size, dtype=torch.float32),
        "gated": RowsLayout(width=spec.intermediate_size, dtype=dtype),
        "added": RowsLayout(width=spec.hidden_size, dtype=torch.float32),
    }


def decoder_links(spec: DecoderSpec, parameters: Parameters, tables: Mapping[str, RopeTable]) -> list[list[Link]]:
    """The links of each chain. tables: by the names of `DecoderSpec.ropes`."""
    before = [_before_attention(layer, spec, parameters, tables) for layer in spec.layers]
    after = [_after_attention(layer, spec, parameters) for layer in spec.layers]
    return [before[0], *(mine + following for mine, following in zip(after[:-1], before[1:], strict=True)), after[-1]]


def _before_attention(layer: LayerSpec, spec: DecoderSpec, parameters: Parameters, tables: Mapping[str, RopeTable]) -> list[Link]:
    shape = HeadShape(num_heads=spec.num_heads, num_kv_heads=spec.num_kv_heads, head_dim=spec.head_dim, eps=spec.norm_eps)
    return [
        Normalize(weight=parameters.vectors[layer.attention_norm], eps=spec.norm_eps, source="hidden", target="normed"),
        Multiply(matrix=parameters.matrices[layer.qkv], source="normed", target="qkv"),
        Rotate(
            table=no_rotation() if layer.rope is None else tables[layer.rope],
            shape=shape,
            query_norm=parameters.vector(layer.query_norm),
            key_norm=parameters.vector(layer.key_norm),
            source="qkv",
            target="rotated",
        ),
    ]


def _after_attention(layer: LayerSpec, spec: DecoderSpec, parameters: Parameters) -> list[Link]:
    return [
        *_added((layer.output,), "attended", layer.attention_norm_after, spec, parameters),
        Normalize(weight=parameters.vectors[layer.mlp_norm], eps=spec.norm_eps, source="hidden", target="normed"),
        Multiply(matrix=parameters.matrices[layer.gate_up], source="normed", target="gate_up"),
        Gate(activation=spec.activation, source="gate_up", target="gated"),
        *_added((layer.down,), "gated", layer.mlp_norm_after, spec, parameters),
    ]


def _added(matrix: tuple[str, ...], source: str, norm_after: str | None, spec: DecoderSpec, parameters: Parameters) -> list[Link]:
    """hidden += matrix source, or the norm of that."""
    found = parameters.matrices[matrix]
    if norm_after is None:
        return [Multiply(matrix=found, source=source, target="hidden", adds=True)]
    return [
        Multiply(matrix=found, source=source, target="added"),
        Normalize(weight=parameters.vectors[norm_after], eps=spec.norm_eps, source="added", target="hidden", adds=True),
    ]
