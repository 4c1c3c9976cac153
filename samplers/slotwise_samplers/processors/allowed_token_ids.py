"""`allowed_token_ids`: all other ids are forbidden."""

from __future__ import annotations

import torch

from slotwise.interfaces.logits_processor import BatchUpdate, LogitsRows, RowRequest, RowStatesProcessor
from slotwise_samplers import capabilities
from slotwise_samplers.processors.row_ids import RowIds


class AllowedTokenIds(RowStatesProcessor[list[int]]):
    """Sets what is not in `SamplingParams.allowed_token_ids` to -inf."""

    capabilities = capabilities.ALLOWED_TOKEN_IDS
    _plain: RowIds | None = None
    """Of steps without drafts; kept while the batch stays the same."""

    def make_state(self, request: RowRequest) -> list[int] | None:
        return request.sampling_params.allowed_token_ids

    def update(self, update: BatchUpdate) -> None:
        super().update(update)
        self._plain = None

    def apply(self, logits: torch.Tensor, rows: LogitsRows) -> bool:
        allowed = self._plain
        if allowed is None or rows.has_drafts:
            allowed = RowIds(((row, ids) for row, ids, _ in self.active_rows(rows)), self.setup.vocab_size, logits.device)
            if not rows.has_drafts:
                self._plain = allowed
        kept = allowed.take(logits)
        logits[[row for row, _, _ in self.active_rows(rows)]] = -torch.inf
        allowed.put(logits, kept)
        return True
