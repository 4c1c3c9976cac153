"""Logprobs of the prompt's own tokens: position i is scored against token i + 1, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slotwise.engine.input_batch import InputBatch
from slotwise.engine.outputs import TokenLogprobs
from slotwise.engine.prepare_inputs import StepInputs


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Where one request's prompt positions of this step stand among the rows of the logits."""

    row: int
    logits: slice
    target_ids: list[int]


def find_prompt_rows(batch: InputBatch, inputs: StepInputs) -> tuple[list[int], list[PromptRows]]:
    """Flat token indices that need logits beside the last of each row, and who they belong to. They follow the sampled rows."""
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
        begin = inputs.num_reqs + len(indices)
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
        logprobs = torch.log_softmax(logits[found.logits].float(), dim=-1)
        targets = torch.tensor(found.target_ids, device=logits.device).unsqueeze(1)
        target_logprobs = logprobs.gather(1, targets)
        ranks = (logprobs >= target_logprobs).sum(1).tolist()
        top = torch.topk(logprobs, logprobs.shape[1] if wanted == -1 else wanted, dim=1)
        ids = torch.cat((targets, top.indices), dim=1).tolist()
        values = torch.cat((target_logprobs, top.values), dim=1).tolist()
        state.prompt_logprobs.extend(TokenLogprobs(token_ids=i, logprobs=v, rank=r) for i, v, r in zip(ids, values, ranks, strict=True))
