"""Does the batch say what the KV cache manager gave out? Compares block tables, slots and lengths of the runner's rows with the manager's.

What this file does not know: memory, backends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from slotwise.errors import KVSanitizerError
from slotwise.interfaces.attention import CommonAttentionMetadata
from slotwise.sanitizer.faults import KVFault
from slotwise.sanitizer.step_view import StepView
from slotwise.sanitizer.visibility import first_visible


def check_tables(step: StepView, group: int, common: CommonAttentionMetadata) -> None:
    """Every entry that a row may use, of one KV group. Raises KVSanitizerError: the fault is the engine's, no backend has run."""
    kv_group = step.ownership.groups[group]
    seq_lens, table, slots = (tensor.cpu().numpy() for tensor in (common.seq_lens, common.block_table, common.slot_mapping))
    for row, request_id in enumerate(step.request_ids):
        start, stop = step.query_start_loc[row], step.query_start_loc[row + 1]
        _compare(step, row, "sequence length", np.array([step.seq_lens[row]]), seq_lens[row : row + 1])
        _compare(step, row, "slot mapping", step.written_slots(row, group), slots[start:stop])
        first = first_visible(kv_group, step.computed[row]) // kv_group.block_size
        last = -(-step.seq_lens[row] // kv_group.block_size)
        given = np.asarray(step.ownership.held[request_id].block_ids[group], dtype=np.int64)
        _compare(step, row, f"block table from entry {first}", given[first:last], table[row, first:last])


def _compare(step: StepView, row: int, what: str, given: npt.NDArray[Any], used: npt.NDArray[Any]) -> None:
    if not np.array_equal(given, used):
        raise KVSanitizerError(
            f"Row {row} of the batch (request {step.request_ids[row]!r}) has the {what} {used.tolist()}, but by the scheduler's record it "
            f"must be {given.tolist()}. Look at the batch update: rows that moved, tables that were not replaced.",
            fault=KVFault.WRONG_TABLE,
            request_id=step.request_ids[row],
        )
