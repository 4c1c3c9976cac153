"""What the `reference` attention backend claims, and its options. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slotwise.config.engine_config import ComponentOptions
from slotwise.interfaces.attention import ATTENTION_TYPES, HND, LAYER_KINDS, NHD, AttentionCapabilities


class ReferenceOptions(ComponentOptions):
    """Options of `reference`."""

    compute_dtype: Literal["float64", "float32"] = Field("float64", description="Precision of scores, softmax and sums.")


CAPABILITIES = AttentionCapabilities(
    devices=("cpu", "cuda"),
    dtypes=("float64", "float32", "bfloat16", "float16"),
    kv_dtypes=("auto", "float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8"),
    kv_layouts=(NHD, HND),
    layer_kinds=LAYER_KINDS,
    attention_types=ATTENTION_TYPES,
    logits_soft_cap=True,
    alibi=True,
    sinks=True,
    non_causal=True,
    custom_mask=True,
    mla=True,
    lse=True,
    context_parallel=True,
    batch_invariant=True,
)
"""No `preference`: slow by intent, it runs only where it is named."""
