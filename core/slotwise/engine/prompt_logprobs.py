"""Logprobs of the prompt's own tokens: position i is scored against token i + 1, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slotwise.engine.input_batch import InputBatch
from slotwise.engine.outputs import TokenLogprobs
from slotwise.engine.prepare_inputs import StepInputs

_ROWS_AT_ONCE = 128
"""Each needs two rows of float32 of the vocabulary's size."""


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Where one request's prompt positions of this step stand among the rows of the logits."""

    row: int
    logits: slice
    target_ids: list[int]


def find_prompt_rows(batch: InputBatch, inputs: StepInputs, *, first_row: int) -> tuple[list[int], list[PromptRows]]:
    """Flat token indices that need logits beside those to be sampled, and who they belong to. Their rows of logits begin at `first_row`."""
    indices: list[int] = []
    rows: list[PromptRows] = []
    for row in range(inputs.num_reqs):
        state = batch.states[row]
        assert state is not None
        if state.sampling_params.prompt_logprobs is None or state.output_token_ids:
            continue
        computed = int(batch.num_computed_tokens[row])
        start = max(computed, len(state.prompt_logprobs))  # a preemption may have left some of them
        stop = min(computed + int(inputs.num_scheduled[row]), len(state.prompt_token_ids) - 1)
        if start >= stop:
            continue
        first = int(inputs.query_start_loc[row]) + start - computed
        begin = first_row + len(indices)
        indices.extend(range(first, first + stop - start))
        rows.append(PromptRows(row, slice(begin, begin + stop - start), state.prompt_token_ids[start + 1 : stop + 1]))
    return indices, rows


def gather_prompt_logprobs(batch: InputBatch, rows: Sequence[PromptRows], logits: torch.Tensor) -> None:
    """Add each position's logprobs to its request's state. logits: [num_rows, vocab_size]."""
    for found in rows:
        state = batch.states[found.row]
        assert state is not None
        wanted = state.sampling_params.prompt_logprobs
        assert wanted is not None
        targets = torch.tensor(found.target_ids, device=logits.device)
        parts = zip(torch.split(logits[found.logits], _ROWS_AT_ONCE), torch.split(targets, _ROWS_AT_ONCE), strict=True)
        for some_logits, some_targets in parts:
            values = some_logits.float().log_softmax(dim=-1)
            gathered = _gather(values, some_targets, wanted)
            state.prompt_logprobs.extend(
                TokenLogprobs(token_ids=ids, logprobs=logprobs, rank=rank)
                for ids, logprobs, rank in zip(*(part.tolist() for part in gathered), strict=True)
            )


def _gather(values: torch.Tensor, targets: torch.Tensor, num_logprobs: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids and values of the targets and the most likely ones, ranks of the targets. values: [num_rows, vocab_size]."""
    of_targets = values.gather(1, targets.unsqueeze(1))
    top = values.topk(values.shape[1] if num_logprobs == -1 else num_logprobs, dim=1)
    ids = torch.cat((targets.unsqueeze(1), top.indices), dim=1)
    return ids, torch.cat((of_targets, top.values), dim=1), (values >= of_targets).sum(dim=1)
