"""What the `flash_attention` backend claims, and its options. Imports no torch.

The claims hold for every version. What only some can do is left out: sinks (4), ALiBi (2), quantised caches (3).
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Literal

from pydantic import Field

from slotwise.config.engine_config import ComponentOptions
from slotwise.interfaces.attention import ATTENTION_TYPES, FULL, NHD, SLIDING_WINDOW, AttentionCapabilities, GraphSupport


class FlashAttentionOptions(ComponentOptions):
    """Options of `flash_attention`."""

    version: Literal["auto", 2, 3, 4] = Field(
        "auto", description="Version of the library; auto = the newest that is installed and suits the card."
    )
    num_splits: int = Field(
        0, ge=0, le=128, description="Parts that the keys of a row are split into (version 3); 0 = the library decides."
    )


def missing_library() -> tuple[str, str] | None:
    """(cause, cure) if no version of the library is installed. Looks for packages without importing them."""
    if any(_is_there(name) for name in ("flash_attn", "flash_attn_interface")):
        return None
    return (
        "no version of the FlashAttention library is installed (packages flash_attn, flash_attn_interface).",
        "python -m pip install --pre flash-attn-4 (compute capability 9 and 10), or python -m pip install flash-attn (8 and above)",
    )


def _is_there(package: str) -> bool:
    if package in sys.modules:
        return sys.modules[package] is not None
    return find_spec(package) is not None


CAPABILITIES = AttentionCapabilities(
    devices=("cuda",),
    dtypes=("bfloat16", "float16"),
    head_dim_multiple_of=8,
    max_head_dim=256,
    block_size_multiple_of=16,
    kv_layouts=(NHD,),
    layer_kinds=(FULL, SLIDING_WINDOW),
    attention_types=ATTENTION_TYPES,
    logits_soft_cap=True,
    non_causal=True,
    lse=True,
    cascade=True,
    graph_support=GraphSupport.UNIFORM_BATCH,
    compute_capability=((8, 0), None),
    preference={"cuda": 70},
)
