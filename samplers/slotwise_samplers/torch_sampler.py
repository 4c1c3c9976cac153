"""`TorchSampler`: the `sampler` slot in plain torch operations, on any device.

Here is the order of operations; each operation has its own file. What this file does not know: requests, text, generators' seeds.
"""

from __future__ import annotations

import torch

from slotwise.interfaces.sampler import (
    GREEDY_EPS,
    LogprobsTensors,
    Sampler,
    SampleRequest,
    SamplerOutput,
    SamplerSetup,
    SamplingMetadata,
)
from slotwise_samplers import capabilities
from slotwise_samplers.logprobs import gather_logprobs, logprobs_source
from slotwise_samplers.penalties import Penalties
from slotwise_samplers.random_draw import RandomDraw
from slotwise_samplers.token_masks import apply_logit_bias, ban_tokens
from slotwise_samplers.truncation import keep_min_p, keep_top_k, keep_top_p


class TorchSampler(Sampler):
    """All parameters, all logprobs modes, per-request seeds.

    A row is unusable if its logits hold NaN or +inf, or if nothing but -inf is left of them; it gets id -1. Forbidden ids count before, not
    after, they are masked. The check is the value at the row's argmax: NaN and +inf win every argmax, and -inf wins it only alone.
    """

    capabilities = capabilities.TORCH

    def __init__(self, setup: SamplerSetup) -> None:
        super().__init__(setup)
        self._random = RandomDraw(setup.device, setup.seed)
        self._penalties = Penalties(setup.vocab_size)

    def sample(self, request: SampleRequest) -> SamplerOutput:
        """See the contract. Sources: the order is that of `slotwise.interfaces.sampler`; each step's formula is in its own file.

        Raises ValueError if drafts are to be verified (`capabilities.speculative` is False).
        """
        if request.spec_decode is not None:
            raise ValueError("the sampler `torch` does not verify drafts; choose one whose capabilities say `speculative`")
        metadata, mode = request.metadata, self.setup.logprobs_mode
        wants_logprobs = metadata.num_logprobs is not None
        logits = request.logits[:, : self.setup.vocab_size].to(torch.float32)
        raw = logprobs_source(logits, mode) if wants_logprobs and mode.startswith("raw") else None

        best, best_logit = _best(logits)
        usable = best_logit.isfinite()
        if self._process(logits, metadata):
            best, best_logit = _best(logits)
            usable &= best_logit.isfinite()

        token_ids, processed = best, logits
        if not metadata.all_greedy:
            processed = self._temper_and_truncate(logits, best_logit, metadata)
            token_ids = self._random.draw(processed, metadata.generators)
            if not metadata.all_random:
                token_ids = torch.where(_temperatures(metadata) < GREEDY_EPS, best, token_ids)
        token_ids = torch.where(usable, token_ids, -1)

        logprobs: LogprobsTensors | None = None
        if metadata.num_logprobs is not None:
            if raw is None:
                shift = None if metadata.all_greedy else best_logit / _divisors(metadata)
                raw = logprobs_source(processed, mode, shift)
            logprobs = gather_logprobs(raw, token_ids, metadata.num_logprobs)
        return SamplerOutput(token_ids=token_ids.unsqueeze(-1), logprobs=logprobs)

    def _process(self, logits: torch.Tensor, metadata: SamplingMetadata) -> bool:
        """Steps 3 to 6, in place on float32 logits [num_rows, vocab_size]. Whether anything may have changed."""
        mask = metadata.allowed_token_ids_mask
        if mask is not None:
            logits.masked_fill_(mask, -torch.inf)
        changed = mask is not None
        changed |= ban_tokens(logits, metadata)
        changed |= apply_logit_bias(logits, metadata.logit_bias)
        changed |= self._penalties.apply(logits, metadata)
        return changed

    @staticmethod
    def _temper_and_truncate(logits: torch.Tensor, best_logit: torch.Tensor, metadata: SamplingMetadata) -> torch.Tensor:
        """Steps 8 to 10. Returns [num_rows, vocab_size] float32: (logit - the row's best logit) / temperature, -inf where dropped.

        The best is subtracted before dividing: the difference of near logits is exact, so no temperature can overflow or merge them. top_k
        comes first: temperature and min_p keep the order of ids, so its set is the same, and here no rounding has made ties yet.
        """
        if metadata.top_k is not None:
            logits = keep_top_k(logits, metadata.top_k)
        scaled = (logits - best_logit.unsqueeze(-1)).div_(_divisors(metadata).unsqueeze(-1))
        if metadata.min_p is not None:
            scaled = keep_min_p(scaled, metadata.min_p)
        if metadata.top_p is not None:
            scaled = keep_top_p(scaled, metadata.top_p)
        return scaled


def _best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Row-wise argmax, [num_rows] int64, and the logit there, [num_rows]."""
    best = logits.argmax(dim=-1)
    return best, logits.gather(-1, best.unsqueeze(-1)).squeeze(-1)


def _temperatures(metadata: SamplingMetadata) -> torch.Tensor:
    if metadata.temperature is None:
        raise ValueError("SamplingMetadata.temperature is None although all_greedy is False")
    return metadata.temperature


def _divisors(metadata: SamplingMetadata) -> torch.Tensor:
    """[num_rows] float32: the temperatures, 1 for greedy rows."""
    temperature = _temperatures(metadata)
    return temperature.where(temperature >= GREEDY_EPS, 1.0)
