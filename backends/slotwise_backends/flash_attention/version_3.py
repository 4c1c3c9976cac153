"""FlashAttention 3 (Hopper): `flash_attn_interface.flash_attn_with_kvcache` over pages, `flash_attn_varlen_func` without."""

from __future__ import annotations

from typing import ClassVar

import torch

from slotwise_backends.flash_attention.work import FlashLibrary, Work


class Version3(FlashLibrary):
    """The package built from the library's `hopper` folder."""

    version: ClassVar[int] = 3
    block_size_multiple_of: ClassVar[int] = 1

    def __init__(self) -> None:
        from flash_attn_interface import flash_attn_varlen_func, flash_attn_with_kvcache

        self._paged, self._unpaged = flash_attn_with_kvcache, flash_attn_varlen_func

    def attend(self, work: Work) -> tuple[torch.Tensor, torch.Tensor]:
        rows = work.rows
        if rows.block_table is None:
            output, lse = self._unpaged(
                work.query,
                work.key,
                work.value,
                cu_seqlens_q=rows.query_start_loc,
                cu_seqlens_k=rows.query_start_loc,
                max_seqlen_q=rows.max_query_len,
                max_seqlen_k=rows.max_key_len,
                softmax_scale=work.scale,
                causal=rows.causal,
                window_size=work.window or (-1, -1),
                softcap=work.soft_cap,
                return_attn_probs=True,
            )
            return output, lse
        output, lse, *_ = self._paged(
            work.query,
            work.key,
            work.value,
            cache_seqlens=rows.key_lens,
            page_table=rows.block_table,
            cu_seqlens_q=rows.query_start_loc,
            max_seqlen_q=rows.max_query_len,
            softmax_scale=work.scale,
            causal=rows.causal,
            window_size=work.window or (-1, -1),
            softcap=work.soft_cap,
            num_splits=work.num_splits,
            return_softmax_lse=True,
        )
        return output, lse
