"""What the `flashinfer` attention backend claims, and its options. Imports no torch.

FlashInfer's window bounds the left side alone, so it serves causal rows only. Left out is what is documented for some of its kernels but
not for all (sinks, ALiBi), splits of fixed size (the tiles still depend on how many tokens a step has, so rows on their company), and MLA,
whose arguments differ among the library's versions.
"""

from __future__ import annotations

from pydantic import Field

from slotwise.config.engine_config import ComponentOptions
from slotwise.interfaces.attention import ATTENTION_TYPES, FULL, HND, NHD, SLIDING_WINDOW, AttentionCapabilities, GraphSupport


class FlashInferOptions(ComponentOptions):
    """Options of `flashinfer`."""

    workspace_mib: int = Field(128, ge=16, description="Scratch memory for splitting keys among programs; the library recommends 128.")
    use_tensor_cores: bool | None = Field(
        None,
        description="Tensor cores for decode rows; by default where four or more query heads share a KV head, and always for groups that "
        "the other kernels lack (5, 6, 7, 9 and more).",
    )


CAPABILITIES = AttentionCapabilities(
    devices=("cuda",),
    dtypes=("bfloat16", "float16"),
    kv_dtypes=("auto", "float8_e4m3fn"),
    head_dims=(64, 128, 256),
    kv_layouts=(NHD, HND),
    layer_kinds=(FULL, SLIDING_WINDOW),
    attention_types=ATTENTION_TYPES,
    logits_soft_cap=True,
    non_causal=True,
    custom_mask=True,
    lse=True,
    cascade=True,
    graph_support=GraphSupport.UNIFORM_SINGLE_TOKEN_DECODE,
    compute_capability=((8, 0), None),
    not_together=(("non_causal", SLIDING_WINDOW), ("custom_mask", SLIDING_WINDOW)),
    preference={"cuda": 65},
)
