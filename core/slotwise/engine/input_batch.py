"""The persistent batch: one row per request, changed by difference from step to step, never rebuilt.

Removing a request leaves a hole; new requests fill the smallest hole first; `condense` moves the last row into the smallest
hole until the rows are dense. What this file does not know: why a request comes or goes, tensors of the model.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from slotwise.engine.block_table import BlockTable
from slotwise.interfaces.kv_cache import KVGroup
from slotwise.interfaces.logits_processor import BatchUpdate, RowMove, RowRequest
from slotwise.sampling_params import SamplingParams

if TYPE_CHECKING:
    from slotwise.engine.outputs import TokenLogprobs
    from slotwise.engine.pooling import PromptPooler


@dataclass(kw_only=True, slots=True)
class RunnerRequestState:
    """What the runner keeps of a request, in the batch or out of it, until it ends."""

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    block_ids: list[list[int]]
    """Per KV group."""
    num_computed_tokens: int
    stop_token_ids: frozenset[int]
    bad_words_token_ids: list[list[int]]
    output_token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Filled chunk by chunk, if asked for."""
    pooler: PromptPooler | None = None
    """Fed chunk by chunk, if the prompt's vector is asked for."""

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def generates(self) -> bool:
        """Whether tokens are wanted, and not only the prompt."""
        return self.sampling_params.max_tokens != 0

    def row_request(self) -> RowRequest:
        """As logits processors see it."""
        return RowRequest(
            sampling_params=self.sampling_params,
            prompt_token_ids=self.prompt_token_ids,
            output_token_ids=self.output_token_ids,
            stop_token_ids=self.stop_token_ids,
            bad_words_token_ids=self.bad_words_token_ids,
        )


class InputBatch:
    """Rows of numpy arrays, dense after `condense`."""

    def __init__(self, *, max_num_rows: int, max_model_len: int, groups: Sequence[KVGroup]) -> None:
        self.request_ids: list[str | None] = [None] * max_num_rows
        self.row_of: dict[str, int] = {}
        self.states: list[RunnerRequestState | None] = [None] * max_num_rows
        self.token_ids: npt.NDArray[np.int64] = np.zeros((max_num_rows, max_model_len), dtype=np.int64)
        self.num_tokens: npt.NDArray[np.int64] = np.zeros(max_num_rows, dtype=np.int64)
        self.num_prompt_tokens: npt.NDArray[np.int64] = np.zeros(max_num_rows, dtype=np.int64)
        self.num_computed_tokens: npt.NDArray[np.int64] = np.zeros(max_num_rows, dtype=np.int64)
        self.block_tables = [
            BlockTable(block_size=group.block_size, max_num_rows=max_num_rows, max_model_len=max_model_len) for group in groups
        ]
        self._removed: list[int] = []
        self._added: list[tuple[int, RunnerRequestState]] = []
        self._moved: list[RowMove] = []
        self._holes: list[int] = []
        self._end = 0

    @property
    def num_rows(self) -> int:
        return len(self.row_of)

    def add(self, state: RunnerRequestState) -> int:
        """Give the request the smallest hole, or a row at the end. Returns the row."""
        if self._holes:
            row = heapq.heappop(self._holes)
        else:
            row = self._end
            self._end += 1
        self.request_ids[row] = state.request_id
        self.row_of[state.request_id] = row
        self.states[row] = state
        num_prompt_tokens = len(state.prompt_token_ids)
        self.token_ids[row, :num_prompt_tokens] = state.prompt_token_ids
        self.token_ids[row, num_prompt_tokens : state.num_tokens] = state.output_token_ids
        self.num_tokens[row] = state.num_tokens
        self.num_prompt_tokens[row] = num_prompt_tokens
        self.num_computed_tokens[row] = state.num_computed_tokens
        for table, block_ids in zip(self.block_tables, state.block_ids, strict=True):
            table.set_row(row, block_ids)
        self._added.append((row, state))
        return row

    def remove(self, request_id: str) -> None:
        """Leave a hole where the request was; unknown ids are ignored."""
        row = self.row_of.pop(request_id, None)
        if row is not None:
            self.request_ids[row] = None
            self.states[row] = None
            heapq.heappush(self._holes, row)
            self._removed.append(row)

    def condense(self) -> None:
        """Move last rows into the smallest holes until rows 0 .. num_rows - 1 are all taken."""
        while self._holes:
            last = self._end - 1
            if self.request_ids[last] is not None:
                self._move(last, heapq.heappop(self._holes))
            else:
                self._holes.remove(last)
                heapq.heapify(self._holes)
            self._end = last

    def _move(self, source: int, target: int) -> None:
        request_id, state = self.request_ids[source], self.states[source]
        assert request_id is not None
        self.request_ids[target], self.states[target] = request_id, state
        self.request_ids[source] = self.states[source] = None
        self.row_of[request_id] = target
        count = self.num_tokens[source]
        self.token_ids[target, :count] = self.token_ids[source, :count]
        for array in (self.num_tokens, self.num_prompt_tokens, self.num_computed_tokens):
            array[target] = array[source]
        for table in self.block_tables:
            table.move_row(source, target)
        self._moved.append(RowMove(source=source, target=target))

    def swap(self, first: int, second: int) -> None:
        """Exchange two taken rows."""
        ids, states = self.request_ids, self.states
        ids[first], ids[second] = ids[second], ids[first]
        states[first], states[second] = states[second], states[first]
        for row in (first, second):
            request_id = ids[row]
            assert request_id is not None
            self.row_of[request_id] = row
        count = max(self.num_tokens[first], self.num_tokens[second])
        self.token_ids[[first, second], :count] = self.token_ids[[second, first], :count]
        for array in (self.num_tokens, self.num_prompt_tokens, self.num_computed_tokens):
            array[[first, second]] = array[[second, first]]
        for table in self.block_tables:
            table.swap_rows(first, second)
        self._moved.append(RowMove(source=first, target=second, is_swap=True))

    def take_update(self) -> BatchUpdate | None:
        """What changed in membership and order since the last call; None = nothing."""
        if not (self._removed or self._added or self._moved):
            return None
        update = BatchUpdate(
            num_rows=self.num_rows,
            removed=self._removed,
            added=[(row, state.row_request()) for row, state in self._added],
            moved=self._moved,
        )
        self._removed, self._added, self._moved = [], [], []
        return update

    def put_drafts(self, row: int, token_ids: Sequence[int]) -> None:
        """Inputs behind the row's tokens, for the next forward alone; `append_token` overwrites them."""
        end = self.num_tokens[row]
        self.token_ids[row, end : end + len(token_ids)] = token_ids

    def append_token(self, row: int, token_id: int) -> None:
        """A sampled token becomes the row's next input."""
        state = self.states[row]
        assert state is not None
        state.output_token_ids.append(token_id)
        position = self.num_tokens[row]
        if position < self.token_ids.shape[1]:
            self.token_ids[row, position] = token_id
        self.num_tokens[row] = position + 1
