"""FlashAttention 2: `flash_attn.flash_attn_varlen_func`. Blocks of a paged cache must have a multiple of 256 tokens."""

from __future__ import annotations

from typing import ClassVar

import torch

from slotwise_backends.flash_attention.work import FlashLibrary, Work


class Version2(FlashLibrary):
    """The package `flash-attn`."""

    version: ClassVar[int] = 2
    block_size_multiple_of: ClassVar[int] = 256

    def __init__(self) -> None:
        from flash_attn import flash_attn_varlen_func

        self._function = flash_attn_varlen_func

    def attend(self, work: Work) -> tuple[torch.Tensor, torch.Tensor]:
        rows = work.rows
        key_starts = torch.zeros(rows.key_lens.numel() + 1, dtype=torch.int32, device=rows.key_lens.device)
        torch.cumsum(rows.key_lens, 0, out=key_starts[1:])
        output, lse, _ = self._function(
            work.query,
            work.key,
            work.value,
            cu_seqlens_q=rows.query_start_loc,
            cu_seqlens_k=key_starts,
            max_seqlen_q=rows.max_query_len,
            max_seqlen_k=rows.max_key_len,
            softmax_scale=work.scale,
            causal=rows.causal,
            window_size=work.window or (-1, -1),
            softcap=work.soft_cap,
            return_attn_probs=True,
            block_table=rows.block_table,
        )
        return output, lse
