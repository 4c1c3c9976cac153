"""`TritonSampler`: the draw in one Triton kernel; everything else as `TorchSampler` does it.

What this file does not know: how the kernel works.
"""

from __future__ import annotations

import torch

from slotwise.interfaces.sampler import LogitsEdits, SamplingMetadata
from slotwise_samplers import capabilities
from slotwise_samplers.torch_sampler import TorchSampler, divisors
from slotwise_samplers.triton_draw_kernel import draw_kernel
from slotwise_samplers.truncation import keep_min_p

MOST_COLUMNS = 4096
"""Of one block."""
ELEMENTS_INTERPRETED = 2**20
"""Of one block in the interpreter, which pays for each operation and not for each element."""


class TritonSampler(TorchSampler):
    """The ids are those of `TorchSampler` for the same random numbers, but where a number lies within rounding of an id's edge."""

    capabilities = capabilities.TRITON

    def draw(
        self,
        logits: torch.Tensor,
        best_logit: torch.Tensor,
        metadata: SamplingMetadata,
        edits: LogitsEdits | None,
        uniforms: torch.Tensor,
        *,
        needs_processed: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_rows, vocab_size = logits.shape
        divisor, min_p = divisors(metadata), metadata.min_p
        if edits is not None and edits.edits_after_temperature:
            logits = (logits - best_logit.unsqueeze(-1)).div_(divisor.unsqueeze(-1))
            logits = logits if min_p is None else keep_min_p(logits, min_p)
            edits.after_temperature(logits)
            best_logit, divisor, min_p = torch.zeros_like(best_logit), torch.ones_like(divisor), None
        logits = logits.contiguous()
        token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
        processed = torch.empty_like(logits) if needs_processed else logits
        if num_rows == 0:
            return token_ids, processed
        rows, block = _tile(num_rows, vocab_size, is_interpreted=logits.device.type == "cpu")
        draw_kernel[(-(-num_rows // rows),)](
            logits,
            best_logit,
            divisor,
            divisor if metadata.top_k is None else metadata.top_k,
            divisor if metadata.top_p is None else metadata.top_p,
            divisor if min_p is None else min_p,
            uniforms.to(logits.device),
            token_ids,
            processed,
            num_rows,
            vocab_size,
            vocab_size,
            HAS_TOP_K=metadata.top_k is not None,
            HAS_TOP_P=metadata.top_p is not None,
            HAS_MIN_P=min_p is not None,
            WRITES_PROCESSED=needs_processed,
            ROWS=rows,
            BLOCK=block,
            num_warps=8,
        )
        return token_ids, processed


def _tile(num_rows: int, vocab_size: int, *, is_interpreted: bool) -> tuple[int, int]:
    """Rows and columns of a block, powers of two."""
    block = min(_power_of_two(vocab_size), MOST_COLUMNS)
    return (min(_power_of_two(num_rows), max(ELEMENTS_INTERPRETED // block, 1)) if is_interpreted else 1), block


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
