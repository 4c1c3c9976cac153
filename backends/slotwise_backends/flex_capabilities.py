"""What the `flex` attention backend claims, and its options. Imports no torch."""

from __future__ import annotations

from pydantic import Field

from slotwise.config.engine_config import ComponentOptions
from slotwise.interfaces.attention import ATTENTION_TYPES, CROSS, ENCODER, ENCODER_ONLY, HND, LAYER_KINDS, NHD, AttentionCapabilities


class FlexOptions(ComponentOptions):
    """Options of `flex`."""

    compile: bool | None = Field(
        None,
        description=(
            "Compile FlexAttention with torch's inductor: seconds for each new shape, so shapes are padded to few. Unset: yes on CUDA, no "
            "on a CPU. Never compiled: float64, MLA, head dimensions below 16 or above 256, and on a CPU layers with sinks or LSE."
        ),
    )
    max_scores: int = Field(
        2**20, ge=1, description="Scores of one head held at once where not compiled; bounds memory. Compiled code holds none."
    )


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
    context_parallel=True,
    not_together=(("context_parallel", CROSS), ("context_parallel", ENCODER), ("context_parallel", ENCODER_ONLY)),
    preference={"cuda": 20},
)
"""No preference on a CPU, where torch's kernels for it are slower than `torch_sdpa`."""
