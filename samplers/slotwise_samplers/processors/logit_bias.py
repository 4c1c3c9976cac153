"""`logit_bias`: a number added to the logits of chosen ids. A banned id stays banned."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from slotwise.interfaces.logits_processor import BatchUpdate, LogitsRows, RowRequest, RowStatesProcessor
from slotwise.sampling_params import MAX_LOGIT_BIAS
from slotwise_samplers import capabilities
from slotwise_samplers.processors.row_ids import RowIds


class LogitBias(RowStatesProcessor[Mapping[int, float]]):
    """Adds `SamplingParams.logit_bias`, each clamped to -100 .. 100."""

    capabilities = capabilities.LOGIT_BIAS
    _plain: tuple[RowIds, torch.Tensor] | None = None
    """Of steps without drafts; kept while the batch stays the same."""

    def make_state(self, request: RowRequest) -> Mapping[int, float] | None:
        bias = request.sampling_params.logit_bias
        return {token_id: value for token_id, value in bias.items() if token_id < self.setup.vocab_size} if bias else None

    def update(self, update: BatchUpdate) -> None:
        super().update(update)
        self._plain = None

    def apply(self, logits: torch.Tensor, rows: LogitsRows) -> bool:
        if rows.has_drafts:
            ids, values = self._biases(rows, logits)
        else:
            self._plain = self._plain or self._biases(rows, logits)
            ids, values = self._plain
        ids.put(logits, ids.take(logits) + values)
        return True

    def _biases(self, rows: LogitsRows, logits: torch.Tensor) -> tuple[RowIds, torch.Tensor]:
        active = [(row, bias) for row, bias, _ in self.active_rows(rows)]
        ids = RowIds(((row, list(bias)) for row, bias in active), self.setup.vocab_size, logits.device)
        values = [value for _, bias in active for value in bias.values()]
        return ids, torch.tensor(values, dtype=logits.dtype, device=logits.device).clamp_(-MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
