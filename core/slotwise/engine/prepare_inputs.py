"""From the batch's rows to the step's flat tensors: positions, input ids, slots, and the rows that get logits.

All of it is vectorised over tokens; the worked numbers of the tests come from the description of vLLM V1's step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from slotwise.engine.input_batch import InputBatch
from slotwise.interfaces.attention import CommonAttentionMetadata

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepInputs:
    """One step's batch, flat. Arrays are on the CPU."""

    num_scheduled: IntArray
    """[num_reqs] tokens of each row."""
    query_start_loc: npt.NDArray[np.int32]
    """[num_reqs + 1] running sum of `num_scheduled`."""
    row_of_token: IntArray
    """[num_tokens]."""
    positions: IntArray
    """[num_tokens]."""
    input_ids: IntArray
    """[num_tokens]."""
    seq_lens: npt.NDArray[np.int32]
    """[num_reqs] computed + scheduled."""
    is_prefilling: npt.NDArray[np.bool_]
    """[num_reqs] computed < prompt, before the step."""
    is_partial: npt.NDArray[np.bool_]
    """[num_reqs] seq_len < tokens the request has: its sample is drawn and thrown away."""
    num_drafts: IntArray
    """[num_reqs] how many of a row's tokens are drafts, the last ones."""

    @property
    def num_reqs(self) -> int:
        return len(self.num_scheduled)

    @property
    def num_tokens(self) -> int:
        return len(self.positions)

    @property
    def has_drafts(self) -> bool:
        return bool(self.num_drafts.any())

    @property
    def logits_indices(self) -> IntArray:
        """[num_logits] last token of each row, [1, 5, 1] -> [0, 5, 6], and before it those that drafts follow: scheduled [3, 1, 6] with
        drafts [2, 0, 1] -> [0, 1, 2, 3, 8, 9]."""
        last = (self.query_start_loc[1:] - 1).astype(np.int64)
        if not self.has_drafts:
            return last
        counts = self.num_drafts + 1
        ends = np.cumsum(counts)
        return np.repeat(last - ends + 1, counts) + np.arange(ends[-1])


def prepare_inputs(batch: InputBatch, num_scheduled: Sequence[int], num_drafts: Sequence[int] | None = None) -> StepInputs:
    """`num_scheduled`: tokens of each row of the (dense) batch, each > 0. `num_drafts`: how many of them are drafts; None = none."""
    counts = np.asarray(num_scheduled, dtype=np.int64)
    num_reqs = len(counts)
    query_start_loc = np.zeros(num_reqs + 1, dtype=np.int32)
    np.cumsum(counts, out=query_start_loc[1:])
    row_of_token = np.repeat(np.arange(num_reqs, dtype=np.int64), counts)
    offsets = np.arange(query_start_loc[-1], dtype=np.int64) - query_start_loc[row_of_token]
    computed = batch.num_computed_tokens[:num_reqs]
    positions = computed[row_of_token] + offsets
    seq_lens = (computed + counts).astype(np.int32)
    return StepInputs(
        num_scheduled=counts,
        query_start_loc=query_start_loc,
        row_of_token=row_of_token,
        positions=positions,
        input_ids=batch.token_ids[row_of_token, positions],
        seq_lens=seq_lens,
        is_prefilling=computed < batch.num_prompt_tokens[:num_reqs],
        is_partial=seq_lens < batch.num_tokens[:num_reqs],
        num_drafts=np.zeros(num_reqs, dtype=np.int64) if num_drafts is None else np.asarray(num_drafts, dtype=np.int64),
    )


def common_metadata(
    batch: InputBatch, inputs: StepInputs, group: int, *, device: str, num_decodes: int = 0, rows: IntArray | None = None
) -> CommonAttentionMetadata:
    """The batch as the backends of one KV group see it. rows: the batch's rows that `inputs` are of; None = all, in order."""
    table = batch.block_tables[group]
    query_start_loc = torch.from_numpy(inputs.query_start_loc)
    seq_lens = torch.from_numpy(inputs.seq_lens)
    max_seq_len = int(inputs.seq_lens.max())
    return CommonAttentionMetadata(
        num_reqs=inputs.num_reqs,
        num_tokens=inputs.num_tokens,
        query_start_loc=query_start_loc.to(device),
        query_start_loc_cpu=query_start_loc,
        seq_lens=seq_lens.to(device),
        seq_lens_cpu=seq_lens,
        block_table=torch.from_numpy(table.rows(inputs.num_reqs if rows is None else rows, max_seq_len)).to(device),
        slot_mapping=torch.from_numpy(table.slot_mapping(inputs.row_of_token, inputs.positions)).to(device),
        positions=torch.from_numpy(inputs.positions).to(device),
        max_query_len=int(inputs.num_scheduled.max()),
        max_seq_len=max_seq_len,
        is_prefilling=torch.from_numpy(inputs.is_prefilling),
        num_decodes=num_decodes,
        num_decode_tokens=num_decodes,
    )


def slice_rows(common: CommonAttentionMetadata, start: int, stop: int) -> CommonAttentionMetadata:
    """The same step for rows start .. stop - 1 alone, as if the batch were only they."""
    first_token, last_token = int(common.query_start_loc_cpu[start]), int(common.query_start_loc_cpu[stop])
    query_lens = common.query_start_loc_cpu[start + 1 : stop + 1] - common.query_start_loc_cpu[start:stop]
    num_decodes = max(0, min(common.num_decodes, stop) - start)
    return CommonAttentionMetadata(
        num_reqs=stop - start,
        num_tokens=last_token - first_token,
        query_start_loc=common.query_start_loc[start : stop + 1] - first_token,
        query_start_loc_cpu=common.query_start_loc_cpu[start : stop + 1] - first_token,
        seq_lens=common.seq_lens[start:stop],
        seq_lens_cpu=common.seq_lens_cpu[start:stop],
        block_table=common.block_table[start:stop],
        slot_mapping=common.slot_mapping[first_token:last_token],
        positions=common.positions[first_token:last_token],
        max_query_len=int(query_lens.max()),
        max_seq_len=int(common.seq_lens_cpu[start:stop].max()),
        is_prefilling=common.is_prefilling[start:stop],
        num_decodes=num_decodes,
        num_decode_tokens=num_decodes,
        causal=common.causal if isinstance(common.causal, bool) else common.causal[start:stop],
        custom_mask=_mask_of_rows(common, start, stop),
        encoder_seq_lens=None if common.encoder_seq_lens is None else common.encoder_seq_lens[start:stop],
        context_parallel_seq_lens=None if common.context_parallel_seq_lens is None else common.context_parallel_seq_lens[start:stop],
        context_parallel_size=common.context_parallel_size,
        context_parallel_rank=common.context_parallel_rank,
    )


def _mask_of_rows(common: CommonAttentionMetadata, start: int, stop: int) -> torch.Tensor | None:
    if common.custom_mask is None:
        return None
    query_lens = common.query_start_loc_cpu[1:] - common.query_start_loc_cpu[:-1]
    areas = (query_lens.long() * common.seq_lens.cpu().long()).cumsum(0).tolist()
    return common.custom_mask[areas[start - 1] if start else 0 : areas[stop - 1]]
