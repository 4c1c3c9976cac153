"""What the `torch_sdpa` attention backend claims, and its options. Imports no torch."""

from __future__ import annotations

from pydantic import Field

from slotwise.config.engine_config import ComponentOptions
from slotwise.interfaces.attention import ATTENTION_TYPES, CROSS, ENCODER, ENCODER_ONLY, HND, LAYER_KINDS, NHD, AttentionCapabilities


class TorchSdpaOptions(ComponentOptions):
    """Options of `torch_sdpa`."""

    decode_bucket_tokens: int = Field(
        2048, ge=1, description="Most cached tokens gathered at once for decode rows: few enough to stay in the CPU's cache."
    )
    query_tile: int = Field(256, ge=1, description="Prompt rows computed at once where a mask is needed; bounds memory.")


CAPABILITIES = AttentionCapabilities(
    devices=("cpu", "cuda"),
    dtypes=("float64", "float32", "bfloat16", "float16"),
    kv_dtypes=("auto", "float64", "float32", "bfloat16", "float16", "int8", "float8_e4m3fn", "float8_e5m2"),
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
    cascade=True,
    context_parallel=True,
    not_together=(("context_parallel", CROSS), ("context_parallel", ENCODER), ("context_parallel", ENCODER_ONLY)),
    preference={"cpu": 50, "cuda": 10},
)
