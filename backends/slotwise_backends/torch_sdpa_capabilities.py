"""What the `torch_sdpa` attention backend claims, and its options. Imports no torch."""

from __future__ import annotations

from pydantic import Field

from slotwise.config.engine_config import ComponentOptions
from slotwise.interfaces.attention import HND, LAYER_KINDS, NHD, AttentionCapabilities


class TorchSdpaOptions(ComponentOptions):
    """Options of `torch_sdpa`."""

    decode_bucket_tokens: int = Field(
        2048, ge=1, description="Most cached tokens gathered at once for decode rows: few enough to stay in the CPU's cache."
    )
    query_tile: int = Field(256, ge=1, description="Prompt rows computed at once where a mask is needed; bounds memory.")


CAPABILITIES = AttentionCapabilities(
    devices=("cpu", "cuda"),
    dtypes=("float32", "bfloat16", "float16"),
    kv_dtypes=("auto", "float32", "bfloat16", "float16"),
    kv_layouts=(NHD, HND),
    layer_kinds=LAYER_KINDS,
    logits_soft_cap=True,
    sinks=True,
    lse=True,
    preference={"cpu": 50, "cuda": 10},
)
