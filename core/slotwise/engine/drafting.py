"""The proposer's place in a step: told of the tokens just sampled, it gives drafts for the next one.

Its own layers, if it has any, are the last ones of the attention dispatch and share the requests' blocks. What this file does not know:
how drafts are made, whether they are right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from slotwise.engine.attention_dispatch import AttentionDispatch
from slotwise.engine.input_batch import InputBatch
from slotwise.engine.prepare_inputs import StepInputs, common_metadata
from slotwise.interfaces.model import ForwardBatch
from slotwise.interfaces.proposer import Proposer, ProposeRequest, ProposeRow, TokenSpan


@dataclass(frozen=True, slots=True)
class DraftAttention:
    """`AttentionContext` of the proposer's layers: index 0 is the first of them."""

    attention: AttentionDispatch
    first_layer: int

    def attend(
        self,
        layer_index: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        *,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self.attention.attend(self.first_layer + layer_index, query, key, value, sinks=sinks, alibi_slopes=alibi_slopes)


@dataclass(slots=True)
class Drafted:
    """A request's last proposal, kept until it is verified."""

    token_ids: list[int]
    probs: torch.Tensor | None


class Drafter:
    """One proposer over the persistent batch."""

    def __init__(
        self, proposer: Proposer, *, batch: InputBatch, attention: AttentionDispatch, first_layer: int, max_model_len: int, device: str
    ) -> None:
        self.proposer = proposer
        self.needs_hidden_states = proposer.capabilities.needs_hidden_states
        self._batch = batch
        self._attention = attention
        self._context = DraftAttention(attention, first_layer)
        self._max_model_len = max_model_len
        self._device = device
        self._drafted: dict[str, Drafted] = {}

    def forget(self, request_ids: Iterable[str]) -> None:
        """Ended requests."""
        for request_id in request_ids:
            self._drafted.pop(request_id, None)

    def probs_of(self, request_ids: Sequence[str], drafts: Sequence[Sequence[int]]) -> list[torch.Tensor | None]:
        """The distributions that scheduled drafts were drawn from, as far as the proposer gave any."""
        found: list[torch.Tensor | None] = []
        for request_id, scheduled in zip(request_ids, drafts, strict=True):
            known = self._drafted.get(request_id)
            assert not scheduled or (known is not None and list(scheduled) == known.token_ids[: len(scheduled)])
            found.append(known.probs if known is not None and scheduled else None)
        return found

    def propose(self, inputs: StepInputs, num_kept: Sequence[int], hidden_states: torch.Tensor | None) -> dict[str, list[int]]:
        """Called when the step's tokens are in the batch. num_kept: tokens each row got. hidden_states: [num_tokens, hidden_size] of the
        step. Returns request id -> drafts, for requests that have any."""
        batch = self._batch
        rows = [self._row(row, inputs, kept) for row, kept in enumerate(num_kept)]
        drafts = self.proposer.propose(
            ProposeRequest(rows=rows, passes=self, hidden_states=None if hidden_states is None else _cut(hidden_states, inputs, num_kept))
        )
        self._attention.end_step()
        proposed = {}
        for row, token_ids in enumerate(drafts.token_ids):
            request_id = batch.request_ids[row]
            assert request_id is not None
            self._drafted.pop(request_id, None)
            kept_ids = [int(token_id) for token_id in token_ids[: rows[row].num_drafts]]
            if kept_ids:
                proposed[request_id] = kept_ids
                self._drafted[request_id] = Drafted(kept_ids, None if drafts.probs is None else drafts.probs[row])
        return proposed

    def _row(self, row: int, inputs: StepInputs, num_kept: int) -> ProposeRow:
        state = self._batch.states[row]
        assert state is not None
        computed = int(self._batch.num_computed_tokens[row])
        num_tokens = int(self._batch.num_tokens[row])
        end = num_tokens if num_kept else computed + int(inputs.num_scheduled[row])
        params = state.sampling_params
        most = self.proposer.setup.num_drafts
        num_left = (params.max_tokens or 0) - len(state.output_token_ids)
        return ProposeRow(
            token_ids=self._batch.token_ids[row, : min(num_tokens, self._max_model_len)],
            first_new=computed,
            num_new=end - computed,
            num_drafts=max(0, min(most, num_left - 1, self._max_model_len - num_tokens - 1)) if num_kept else 0,
            temperature=params.temperature,
            has_seed=params.seed is not None,
        )

    def begin(self, spans: Sequence[TokenSpan]) -> ForwardBatch:
        """See `interfaces.proposer.DraftPasses.begin`."""
        counts = np.array([len(span.token_ids) for span in spans], dtype=np.int64)
        firsts = np.array([span.first_position for span in spans], dtype=np.int64)
        rows = np.array([span.row for span in spans], dtype=np.int64)
        query_start_loc = np.zeros(len(spans) + 1, dtype=np.int32)
        np.cumsum(counts, out=query_start_loc[1:])
        offsets = np.arange(query_start_loc[-1], dtype=np.int64) - np.repeat(query_start_loc[:-1], counts)
        inputs = StepInputs(
            num_scheduled=counts,
            query_start_loc=query_start_loc,
            row_of_token=np.repeat(rows, counts),
            positions=np.repeat(firsts, counts) + offsets,
            input_ids=np.concatenate([np.asarray(span.token_ids, dtype=np.int64) for span in spans]),
            seq_lens=(firsts + counts).astype(np.int32),
            is_prefilling=firsts < self._batch.num_prompt_tokens[rows],
            is_partial=np.zeros(len(spans), dtype=np.bool_),
            num_drafts=np.zeros(len(spans), dtype=np.int64),
        )
        num_decodes = len(spans) if (counts == 1).all() else 0
        self._attention.begin_step(
            [
                common_metadata(self._batch, inputs, group, device=self._device, num_decodes=num_decodes, rows=rows)
                for group in range(len(self._batch.block_tables))
            ]
        )
        return ForwardBatch(
            input_ids=torch.from_numpy(inputs.input_ids).to(self._device),
            positions=torch.from_numpy(inputs.positions).to(self._device),
            logits_indices=torch.from_numpy(inputs.logits_indices).to(self._device),
            attention=self._context,
            wants_hidden_states=self.needs_hidden_states,
        )


def _cut(hidden_states: torch.Tensor, inputs: StepInputs, num_kept: Sequence[int]) -> list[torch.Tensor]:
    """Per row, the hidden states of tokens that stay: refused drafts are the last ones."""
    parts = []
    for row, kept in enumerate(num_kept):
        start, end = int(inputs.query_start_loc[row]), int(inputs.query_start_loc[row + 1])
        num_refused = int(inputs.num_drafts[row]) + 1 - kept if kept else 0
        parts.append(hidden_states[start : end - num_refused])
    return parts
