"""`min_tokens`: what ends an output is banned while it has fewer tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slotwise.interfaces.logits_processor import LogitsRows, RowRequest, RowStatesProcessor
from slotwise_samplers import capabilities
from slotwise_samplers.processors.row_ids import RowIds


@dataclass(frozen=True, slots=True)
class Minimum:
    """Of one request."""

    num_tokens: int
    stop_token_ids: Sequence[int]
    output_token_ids: Sequence[int]


class MinTokens(RowStatesProcessor[Minimum]):
    """Bans EOS and stop ids. Where nothing else is left (a grammar whose text is complete), they stay: an early end is better than none."""

    capabilities = capabilities.MIN_TOKENS

    def make_state(self, request: RowRequest) -> Minimum | None:
        minimum = request.sampling_params.min_tokens
        if len(request.output_token_ids) >= minimum or not request.stop_token_ids:
            return None
        return Minimum(minimum, sorted(request.stop_token_ids), request.output_token_ids)

    def apply(self, logits: torch.Tensor, rows: LogitsRows) -> bool:
        for row in [row for row, state in self.states.items() if len(state.output_token_ids) >= state.num_tokens]:
            del self.states[row]
        pairs = [
            (row, state.stop_token_ids)
            for row, state, drafts in self.active_rows(rows)
            if len(state.output_token_ids) + len(drafts) < state.num_tokens
        ]
        banned = RowIds(pairs, self.setup.vocab_size, logits.device)
        if not len(banned):
            return False
        before = banned.take(logits)
        banned.put(logits, -torch.inf)
        is_empty = (logits[[row for row, _ in pairs]] == -torch.inf).all(dim=-1)
        if bool(is_empty.any()):
            empty_rows = torch.tensor([row for row, _ in pairs], device=logits.device)[is_empty]
            banned.put(logits, torch.where(torch.isin(banned.rows, empty_rows), before, -torch.inf))
        return True
