"""What the `cpu` attention backend claims, and whether its library was built. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from slotwise.interfaces.attention import ATTENTION_TYPES, HND, LAYER_KINDS, NHD, AttentionCapabilities

LIBRARY = Path(__file__).with_name("_kernels.native.so")


def missing_library() -> tuple[str, str] | None:
    """(cause, cure) if the kernels were not compiled when Slotwise was installed."""
    if LIBRARY.exists():
        return None
    return (
        "its C kernels were not built: no C compiler was found when Slotwise was installed.",
        "install gcc or clang, then Slotwise again: python -m pip install --force-reinstall --no-deps slotwise",
    )


CAPABILITIES = AttentionCapabilities(
    devices=("cpu",),
    dtypes=("float32", "bfloat16", "float16"),
    kv_dtypes=("auto", "float32", "bfloat16", "float16", "float8_e4m3fn", "int8"),
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
    context_parallel=True,
    batch_invariant=True,
    preference={"cpu": 70},
)
