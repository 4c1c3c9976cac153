"""`TorchSampler`: the `sampler` slot in plain torch operations, on any device.

Here is the order of operations; each operation has its own file. What this file does not know: requests, text, why logits are edited.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from slotwise.interfaces.sampler import GREEDY_EPS, LogitsEdits, Sampler, SampleRequest, SamplerOutput, SamplerSetup, SamplingMetadata
from slotwise_samplers import capabilities
from slotwise_samplers.logprobs import gather_logprobs
from slotwise_samplers.random_draw import RandomDraw, draw
from slotwise_samplers.truncation import keep_min_p, keep_top_k, keep_top_p
from slotwise_samplers.verification import verify_drafts

Truncation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(values, parameter of each row) -> values, -inf where dropped."""


class TorchSampler(Sampler):
    """All parameters, all logprobs modes, per-request seeds, verification of drafts.

    A row is unusable if its logits hold NaN or +inf, or if nothing but -inf is left of them; it gets id -1. Forbidden ids count before, not
    after, they are masked. The check is the value at the row's argmax: NaN and +inf win every argmax, and -inf wins it only alone.
    """

    capabilities = capabilities.TORCH

    def __init__(self, setup: SamplerSetup) -> None:
        super().__init__(setup)
        self._random = RandomDraw(setup.seed)

    def sample(self, request: SampleRequest) -> SamplerOutput:
        """See the contract. The order is that of `slotwise.interfaces.sampler`; each step's formula is in its own file."""
        spec, edits, mode = request.spec_decode, request.edits, self.setup.logprobs_mode
        metadata = request.metadata if spec is None else request.metadata.select(spec.request_of_row)
        wants_logprobs = metadata.num_logprobs is not None
        logits = request.logits[:, : self.setup.vocab_size].to(torch.float32)
        raw = None
        if wants_logprobs and mode.startswith("raw"):
            raw = logits if edits is None else logits.clone()

        best, best_logit = _best(logits)
        usable = best_logit.isfinite()
        if edits is not None and edits.before_argmax(logits):
            best, best_logit = _best(logits)
            usable &= best_logit.isfinite()

        drawn, processed, is_greedy = best, logits, None
        if not metadata.all_greedy:
            needs_processed = (wants_logprobs and raw is None) or (spec is not None and spec.draft_probs is not None)
            uniforms = self._random.uniforms(metadata.num_rows, metadata.seeds, request.positions)
            drawn, processed = self.draw(logits, best_logit, metadata, edits, uniforms, needs_processed=needs_processed)
            if not metadata.all_random:
                is_greedy = temperatures(metadata) < GREEDY_EPS
                drawn = torch.where(is_greedy, best, drawn)
        token_ids = torch.where(usable, drawn, -1)

        sampled = token_ids.unsqueeze(-1)
        if spec is not None:
            verified = verify_drafts(
                token_ids,
                spec,
                is_greedy=is_greedy,
                target_probs=None if metadata.all_greedy or spec.draft_probs is None else processed.softmax(dim=-1),
                uniforms=lambda purpose: self._random.uniforms(metadata.num_rows, metadata.seeds, request.positions, purpose=purpose),
            )
            sampled, token_ids = verified.token_ids, verified.token_of_row
        if metadata.num_logprobs is None:
            return SamplerOutput(token_ids=sampled)
        shift = None if raw is not None or metadata.all_greedy else best_logit / divisors(metadata)
        logprobs = gather_logprobs(processed if raw is None else raw, token_ids, metadata.num_logprobs, mode=mode, shift=shift)
        return SamplerOutput(token_ids=sampled, logprobs=logprobs)

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
        """Steps 5 to 8 for every row, greedy ones as if they had temperature 1. logits: [num_rows, vocab_size] float32; best_logit:
        [num_rows]; uniforms: [num_rows] float64 on the CPU. Returns ids, [num_rows] int64, and what `temper_and_truncate` gives, or any
        tensor if that is not needed. A row's id is the first whose cumulative probability exceeds its uniform number."""
        processed = temper_and_truncate(logits, best_logit, metadata, edits)
        return draw(processed.exp(), uniforms), processed


def temper_and_truncate(
    logits: torch.Tensor,
    best_logit: torch.Tensor,
    metadata: SamplingMetadata,
    edits: LogitsEdits | None = None,
    *,
    top_k: Truncation = keep_top_k,
    top_p: Truncation = keep_top_p,
) -> torch.Tensor:
    """Steps 5 to 7. Returns [num_rows, vocab_size] float32: (logit - the row's best logit) / temperature, -inf where dropped.

    The best is subtracted before dividing: the difference of near logits is exact, so no temperature can overflow or merge them. top_k
    comes first where nothing is edited after temperature: temperature and min_p keep the order of ids, so its set is the same, and before
    them no rounding has made ties yet. top_k, top_p: how these are done, as in `truncation`.
    """
    is_edited = edits is not None and edits.edits_after_temperature
    if metadata.top_k is not None and not is_edited:
        logits = top_k(logits, metadata.top_k)
    scaled = (logits - best_logit.unsqueeze(-1)).div_(divisors(metadata).unsqueeze(-1))
    if metadata.min_p is not None:
        scaled = keep_min_p(scaled, metadata.min_p)
    if edits is not None and is_edited:
        edits.after_temperature(scaled)
        if metadata.top_k is not None:
            scaled = top_k(scaled, metadata.top_k)
    if metadata.top_p is not None:
        scaled = top_p(scaled, metadata.top_p)
    return scaled


def temperatures(metadata: SamplingMetadata) -> torch.Tensor:
    """[num_rows] float32. Raises ValueError where there are none though some row is random."""
    if metadata.temperature is None:
        raise ValueError("SamplingMetadata.temperature is None although all_greedy is False")
    return metadata.temperature


def divisors(metadata: SamplingMetadata) -> torch.Tensor:
    """[num_rows] float32: the temperatures, 1 for greedy rows."""
    temperature = temperatures(metadata)
    return temperature.where(temperature >= GREEDY_EPS, 1.0)


def _best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Row-wise argmax, [num_rows] int64, and the logit there, [num_rows]."""
    best = logits.argmax(dim=-1)
    return best, logits.gather(-1, best.unsqueeze(-1)).squeeze(-1)
