"""FlashAttention 4 (CuTe DSL): `flash_attn.cute.flash_attn_varlen_func`. No pages on compute capability 8; keys are split only on 10."""

from __future__ import annotations

from typing import ClassVar

import torch

from slotwise_backends.flash_attention.work import FlashLibrary, Work


class Version4(FlashLibrary):
    """The package `flash-attn-4`."""

    version: ClassVar[int] = 4
    block_size_multiple_of: ClassVar[int] = 1

    def __init__(self) -> None:
        from flash_attn.cute import flash_attn_varlen_func

        self._function = flash_attn_varlen_func

    def attend(self, work: Work) -> tuple[torch.Tensor, torch.Tensor]:
        rows = work.rows
        is_paged = rows.block_table is not None
        output, lse = self._function(
            work.query,
            work.key,
            work.value,
            cu_seqlens_q=rows.query_start_loc,
            cu_seqlens_k=None if is_paged else rows.query_start_loc,
            max_seqlen_q=rows.max_query_len,
            max_seqlen_k=rows.max_key_len,
            seqused_k=rows.key_lens if is_paged else None,
            page_table=rows.block_table,
            softmax_scale=work.scale,
            causal=rows.causal,
            window_size=work.window or (None, None),
            softcap=work.soft_cap,
            num_splits=max(work.num_splits, 1),
            return_lse=True,
        )
        return output, lse
