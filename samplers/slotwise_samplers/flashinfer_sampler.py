"""`FlashInferSampler`: top_k and top_p by the FlashInfer library, which finds their thresholds without sorting; the rest in torch.

The library's own draws are not used: they take no number of ours, so a request's seed could not give the same ids in every batch.
What this file does not know: how the library finds a threshold.
"""

from __future__ import annotations

from typing import Any

import torch

from slotwise.interfaces.sampler import LogitsEdits, SamplerSetup, SamplingMetadata
from slotwise_samplers import capabilities
from slotwise_samplers.random_draw import draw
from slotwise_samplers.torch_sampler import TorchSampler, temper_and_truncate

_ROUNDING = 1e-6
"""As in `truncation`: a mass this close below p, relatively, counts as p."""


class FlashInferSampler(TorchSampler):
    """Ids as from `TorchSampler`, but where sums of float32 decide otherwise at the edge of a nucleus."""

    capabilities = capabilities.FLASHINFER

    def __init__(self, setup: SamplerSetup) -> None:
        super().__init__(setup)
        import flashinfer.sampling

        self._library: Any = flashinfer.sampling

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
        processed = temper_and_truncate(logits, best_logit, metadata, edits, top_k=self._keep_top_k, top_p=self._keep_top_p)
        return draw(processed.exp(), uniforms), processed

    def _keep_top_k(self, logits: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
        """As `truncation.keep_top_k`. The library wants 0 < k < vocab_size, and may drop ties with the k-th, which are taken back."""
        vocab_size = logits.shape[-1]
        is_off = ((top_k < 1) | (top_k >= vocab_size)).unsqueeze(-1)
        if vocab_size == 1:
            return logits
        k = top_k.clamp(1, vocab_size - 1).to(torch.int32)
        masked = self._library.top_k_mask_logits(logits.contiguous(), k)
        kth = masked.masked_fill(masked == -torch.inf, torch.inf).amin(dim=-1, keepdim=True)
        return torch.where((logits >= kth) | is_off, logits, -torch.inf)

    def _keep_top_p(self, scaled: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
        """As `truncation.keep_top_p`. The library wants 0 < p < 1 and keeps all equals at the edge, of which only the lowest ids stay."""
        is_off = (top_p >= 1).unsqueeze(-1)
        p = top_p.clamp(max=1 - _ROUNDING).contiguous()
        probs = scaled.softmax(dim=-1)
        kept = self._library.top_p_renorm_probs(probs, p) > 0
        edge = torch.where(kept, scaled, torch.inf).amin(dim=-1, keepdim=True)
        mass_above = torch.where(scaled > edge, probs, 0.0).sum(dim=-1, keepdim=True, dtype=torch.float64)
        weight = torch.where(scaled == edge, probs, 0.0).amax(dim=-1, keepdim=True).double()
        limit = p.double().unsqueeze(-1) * (1 - _ROUNDING)
        needed = ((limit - mass_above) / weight.clamp(min=torch.finfo(torch.float64).tiny)).ceil_().clamp_(min=1)
        at_edge = scaled == edge
        nucleus = (scaled > edge) | (at_edge & (at_edge.cumsum(dim=-1) <= needed))
        return scaled.masked_fill(~(nucleus | is_off), -torch.inf)
