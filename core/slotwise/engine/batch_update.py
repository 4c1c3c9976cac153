"""Brings the persistent batch in line with what the scheduler decided, in a fixed order.

Ended requests leave, unscheduled rows leave (their state stays), known requests are updated by difference, new and resumed ones are
added, the rows are condensed, and, if phases are served by different backends, decode rows are moved to the front.
"""

from __future__ import annotations

from collections.abc import Callable

from slotwise.engine.input_batch import InputBatch, RunnerRequestState
from slotwise.engine.pooling import PromptPooler
from slotwise.engine.scheduler_output import NewRequestData, SchedulerOutput


class BatchUpdater:
    """Keeps the states of all requests the runner knows; those scheduled now have a row in the batch."""

    def __init__(self, batch: InputBatch, *, decode_first: bool = False) -> None:
        self.batch = batch
        self.states: dict[str, RunnerRequestState] = {}
        self._decode_first = decode_first

    def apply(self, scheduled: SchedulerOutput) -> int:
        """Returns how many decode rows lead the batch; 0 where their order does not matter."""
        for request_id in scheduled.finished_request_ids:
            self.states.pop(request_id, None)
            self.batch.remove(request_id)
        for request_id in [known for known in self.batch.row_of if known not in scheduled.num_scheduled_tokens]:
            self.batch.remove(request_id)
        to_add = [self._new_state(data) for data in scheduled.scheduled_new_requests]
        to_add += self._update_known(scheduled)
        for state in to_add:
            self.batch.remove(state.request_id)  # a session's next turn comes as a new request of the same id
            self.batch.add(state)
        self.batch.condense()
        if not self._decode_first:
            return 0
        return move_decodes_first(self.batch, lambda request_id: scheduled.num_scheduled_tokens[request_id])

    def _new_state(self, data: NewRequestData) -> RunnerRequestState:
        state = RunnerRequestState(
            request_id=data.request_id,
            prompt_token_ids=data.prompt_token_ids,
            sampling_params=data.sampling_params,
            block_ids=[list(ids) for ids in data.block_ids],
            num_computed_tokens=data.num_computed_tokens,
            stop_token_ids=data.stop_token_ids,
            bad_words_token_ids=data.bad_words_token_ids,
            pooler=None if data.pooling is None else PromptPooler(data.pooling),
        )
        self.states[data.request_id] = state
        return state

    def _update_known(self, scheduled: SchedulerOutput) -> list[RunnerRequestState]:
        """Apply the differences; returns the states that have no row (resumed, or unscheduled before)."""
        without_row, rows, computed = [], [], []
        data, batch = scheduled.scheduled_cached_requests, self.batch
        for request_id, new_block_ids, num_computed in zip(data.request_ids, data.new_block_ids, data.num_computed_tokens, strict=True):
            state = self.states[request_id]
            state.num_computed_tokens = num_computed
            row = batch.row_of.get(request_id)
            resumed = request_id in data.resumed_request_ids
            if resumed:
                state.block_ids = [[] for _ in state.block_ids]
            if new_block_ids is not None:
                for known, new in zip(state.block_ids, new_block_ids, strict=True):
                    known.extend(new)
            if row is None:
                without_row.append(state)
                continue
            rows.append(row)
            computed.append(num_computed)
            if new_block_ids is not None:
                for table, known, new in zip(batch.block_tables, state.block_ids, new_block_ids, strict=True):
                    if resumed:
                        table.set_row(row, known)
                    else:
                        table.append_row(row, new)
        batch.num_computed_tokens[rows] = computed
        return without_row


def move_decodes_first(batch: InputBatch, num_scheduled: Callable[[str], int]) -> int:
    """Order rows: decodes (one token, context computed, prompt done) before all others. Returns how many decodes there are."""
    front = 0
    for row in range(batch.num_rows):
        if is_decode(batch, row, num_scheduled):
            if row != front:
                batch.swap(row, front)
            front += 1
    return front


def is_decode(batch: InputBatch, row: int, num_scheduled: Callable[[str], int]) -> bool:
    request_id = batch.request_ids[row]
    assert request_id is not None
    return num_scheduled(request_id) == 1 and batch.num_computed_tokens[row] >= batch.num_prompt_tokens[row]
