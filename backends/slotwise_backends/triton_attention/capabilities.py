"""What the `triton` attention backend claims, and its options. Imports no torch."""

from __future__ import annotations

from pydantic import Field

from slotwise.config.engine_config import ComponentOptions
from slotwise.config.environment import is_triton_interpreted
from slotwise.interfaces.attention import ATTENTION_TYPES, HND, LAYER_KINDS, NHD, AttentionCapabilities, GraphSupport


class TritonOptions(ComponentOptions):
    """Options of `triton`."""

    min_split_tokens: int = Field(256, ge=16, description="Keys of a decode row are split among programs in parts of at least this many.")


CAPABILITIES = AttentionCapabilities(
    devices=("cuda", "cpu") if is_triton_interpreted() else ("cuda",),
    dtypes=("float32", "bfloat16", "float16"),
    kv_dtypes=("auto", "float8_e4m3fn", "int8"),
    kv_layouts=(NHD, HND),
    layer_kinds=LAYER_KINDS,
    attention_types=ATTENTION_TYPES,
    logits_soft_cap=True,
    alibi=True,
    sinks=True,
    non_causal=True,
    mla=True,
    custom_mask=True,
    lse=True,
    cascade=True,
    context_parallel=True,
    batch_invariant=True,
    graph_support=GraphSupport.ALWAYS,
    compute_capability=((8, 0), None),
    preference={"cuda": 60},
)
"""On the CPU only in Triton's interpreter (TRITON_INTERPRET=1), to examine the kernels: never by `auto`."""
