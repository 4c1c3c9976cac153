"""The worked numbers of the step: positions, slots, rows that get logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotwise.engine.block_table import BlockTable
from slotwise.engine.input_batch import InputBatch, RunnerRequestState
from slotwise.engine.prepare_inputs import common_metadata, prepare_inputs, slice_rows
from slotwise.interfaces.kv_cache import KVGroup
from slotwise.sampling_params import SamplingParams


def group(block_size: int = 16) -> KVGroup:
    return KVGroup(index=0, layer_names=("layer.0",), block_size=block_size, bytes_per_block=1)


def state(
    request_id: str, num_prompt: int, *, computed: int = 0, outputs: int = 0, block_ids: list[int] | None = None
) -> RunnerRequestState:
    return RunnerRequestState(
        request_id=request_id,
        prompt_token_ids=list(range(100, 100 + num_prompt)),
        sampling_params=SamplingParams(),
        block_ids=[block_ids if block_ids is not None else list(range(1, 9))],
        num_computed_tokens=computed,
        stop_token_ids=frozenset(),
        bad_words_token_ids=[],
        output_token_ids=list(range(900, 900 + outputs)),
    )


def batch_of(*states: RunnerRequestState, block_size: int = 16) -> InputBatch:
    batch = InputBatch(max_num_rows=8, max_model_len=512, groups=[group(block_size)])
    for each in states:
        batch.add(each)
    return batch


def test_last_token_of_each_row_gets_logits() -> None:
    batch = batch_of(state("a", 3, computed=3, outputs=1), state("b", 5), state("c", 7, computed=7, outputs=1))
    inputs = prepare_inputs(batch, [1, 5, 1])
    assert inputs.query_start_loc.tolist() == [0, 1, 6, 7]
    assert inputs.logits_indices.tolist() == [0, 5, 6]


def test_rows_and_positions_of_a_ragged_batch() -> None:
    batch = batch_of(state("a", 9, computed=9, outputs=1), state("b", 6, computed=2), state("c", 2))
    inputs = prepare_inputs(batch, [1, 4, 2])
    assert inputs.row_of_token.tolist() == [0, 1, 1, 1, 1, 2, 2]
    assert inputs.positions.tolist() == [9, 2, 3, 4, 5, 0, 1]
    assert inputs.input_ids.tolist() == [900, 102, 103, 104, 105, 100, 101]
    assert inputs.seq_lens.tolist() == [10, 6, 2]
    assert inputs.is_prefilling.tolist() == [False, True, True]


def test_prefill_of_five_tokens_in_block_65_takes_slots_1040_to_1044() -> None:
    table = BlockTable(block_size=16, max_num_rows=1, max_model_len=64)
    table.set_row(0, [65])
    assert table.slot_mapping(np.zeros(5, np.int64), np.arange(5)).tolist() == [1040, 1041, 1042, 1043, 1044]


def test_decode_at_position_18_of_blocks_65_and_131_takes_slot_2098() -> None:
    table = BlockTable(block_size=16, max_num_rows=1, max_model_len=64)
    table.set_row(0, [65, 131])
    assert table.slot_mapping(np.zeros(1, np.int64), np.array([18])).tolist() == [2098]


def test_partial_prefill_is_marked_and_finished_prefill_is_not() -> None:
    batch = batch_of(state("a", 30), state("b", 30, computed=22))
    assert prepare_inputs(batch, [8, 8]).is_partial.tolist() == [True, False]


def test_a_resumed_request_recomputes_prompt_and_outputs() -> None:
    batch = batch_of(state("a", 3, computed=0, outputs=4))
    inputs = prepare_inputs(batch, [7])
    assert inputs.input_ids.tolist() == [100, 101, 102, 900, 901, 902, 903]
    assert not inputs.is_partial[0]


def test_block_table_entries_past_a_rows_blocks_are_the_null_block() -> None:
    batch = batch_of(state("a", 33, block_ids=[7, 8, 9]), state("b", 3, block_ids=[5]))
    batch.block_tables[0].table[1, 1:] = 99  # what an earlier, longer request left there
    common = common_metadata(batch, prepare_inputs(batch, [33, 3]), 0, device="cpu")
    assert common.block_table.tolist() == [[7, 8, 9], [5, 0, 0]]
    assert common.block_table.dtype == torch.int32
    assert common.slot_mapping.dtype == torch.int64


def test_slice_of_rows_equals_the_batch_of_those_rows_alone() -> None:
    rows = [state("a", 3, computed=3, outputs=1, block_ids=[1]), state("b", 5, block_ids=[2]), state("c", 20, computed=4, block_ids=[3, 4])]
    whole = common_metadata(batch := batch_of(*rows), prepare_inputs(batch, [1, 5, 16]), 0, device="cpu", num_decodes=1)
    alone = common_metadata(batch := batch_of(*rows[1:]), prepare_inputs(batch, [5, 16]), 0, device="cpu")
    part = slice_rows(whole, 1, 3)
    for name in ("query_start_loc", "query_start_loc_cpu", "seq_lens", "slot_mapping", "positions", "block_table", "is_prefilling"):
        assert torch.equal(getattr(part, name), getattr(alone, name)), name
    for name in ("num_reqs", "num_tokens", "max_query_len", "max_seq_len", "num_decodes"):
        assert getattr(part, name) == getattr(alone, name), name


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), min_size=1, max_size=8),
    st.sampled_from([1, 3, 4, 16, 48]),
)
def test_every_token_gets_its_own_slot_within_its_rows_blocks(rows: list[tuple[int, int]], block_size: int) -> None:
    states, next_block = [], 1
    for index, (computed, scheduled) in enumerate(rows):
        count = -(-(computed + scheduled) // block_size)
        states.append(state(str(index), computed + scheduled, computed=computed, block_ids=list(range(next_block, next_block + count))))
        next_block += count
    batch = batch_of(*states, block_size=block_size)
    inputs = prepare_inputs(batch, [scheduled for _, scheduled in rows])
    slots = batch.block_tables[0].slot_mapping(inputs.row_of_token, inputs.positions).tolist()
    assert len(set(slots)) == len(slots)
    for slot, row, position in zip(slots, inputs.row_of_token, inputs.positions, strict=True):
        assert slot // block_size in states[row].block_ids[0]
        assert slot % block_size == position % block_size
    assert inputs.logits_indices.tolist() == [int(np.flatnonzero(inputs.row_of_token == row)[-1]) for row in range(len(rows))]


@pytest.mark.parametrize("holes", [[0], [1, 3], [4], [0, 1, 2, 3, 4], [2, 4], [0, 4]])
def test_condense_leaves_dense_rows_with_their_own_content(holes: list[int]) -> None:
    batch = batch_of(*(state(str(i), 3 + i, block_ids=[i + 1]) for i in range(5)))
    for row in holes:
        batch.remove(str(row))
    batch.condense()
    assert sorted(batch.row_of.values()) == list(range(5 - len(holes)))
    for request_id, row in batch.row_of.items():
        assert batch.request_ids[row] == request_id
        assert batch.num_tokens[row] == 3 + int(request_id)
        assert batch.token_ids[row, : 3 + int(request_id)].tolist() == list(range(100, 103 + int(request_id)))
        assert batch.block_tables[0].table[row, 0] == int(request_id) + 1


def test_condense_moves_the_last_row_into_the_smallest_hole() -> None:
    batch = batch_of(*(state(str(i), 3) for i in range(5)))
    batch.remove("1")
    batch.remove("2")
    batch.condense()
    assert batch.request_ids[:3] == ["0", "4", "3"]


def test_new_requests_fill_the_smallest_hole_first() -> None:
    batch = batch_of(*(state(str(i), 3) for i in range(4)))
    batch.remove("2")
    batch.remove("0")
    assert batch.add(state("new", 3)) == 0
    assert batch.add(state("newer", 3)) == 2
    assert batch.add(state("newest", 3)) == 4
