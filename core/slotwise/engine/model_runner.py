"""Runs the model for what the scheduler decided: batch update, inputs, metadata, forward; then sampling.

`execute_model` ends with logits on the device; `sample_tokens` turns them into ids, so that a grammar mask can be made meanwhile.
What this file does not know: why a request is scheduled, when it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from slotwise.engine.attention_dispatch import AttentionDispatch
from slotwise.engine.batch_update import BatchUpdater
from slotwise.engine.block_copy import copy_blocks
from slotwise.engine.input_batch import InputBatch, RunnerRequestState
from slotwise.engine.outputs import TokenLogprobs
from slotwise.engine.prepare_inputs import StepInputs, common_metadata, prepare_inputs
from slotwise.engine.prompt_logprobs import PromptRows, find_prompt_rows, gather_prompt_logprobs
from slotwise.engine.sampling_batch import kept_generators, sampling_metadata
from slotwise.engine.scheduler_output import ModelRunnerOutput, SchedulerOutput
from slotwise.interfaces.model import ForwardBatch, Model
from slotwise.interfaces.sampler import LogprobsTensors, Sampler, SampleRequest, SamplingMetadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slotwise.interfaces.kv_cache import KVGroup

UNUSABLE_LOGITS = "the model's logits for this request are unusable (NaN, +inf, or every id at -inf); nothing can be sampled"


@dataclass(slots=True)
class _Pending:
    """A forward whose tokens are not sampled yet."""

    inputs: StepInputs
    logits: torch.Tensor
    prompt_rows: list[PromptRows]


class ModelRunner:
    """One model on one device, with its caches and its persistent batch."""

    def __init__(
        self,
        *,
        model: Model,
        sampler: Sampler,
        attention: AttentionDispatch,
        groups: Sequence[KVGroup],
        max_num_seqs: int,
        max_model_len: int,
        device: str,
    ) -> None:
        self.model = model
        self.sampler = sampler
        self.attention = attention
        self.device = device
        self.batch = InputBatch(max_num_rows=max_num_seqs, max_model_len=max_model_len, groups=groups)
        self.updater = BatchUpdater(self.batch, device=device, decode_first=attention.needs_decodes_first)
        self._metadata: SamplingMetadata | None = None
        self._pending: _Pending | None = None

    @torch.inference_mode()
    def execute_model(self, scheduled: SchedulerOutput) -> None:
        """Everything up to the logits. A step without tokens only brings the batch up to date."""
        num_decodes = self.updater.apply(scheduled)
        self.attention.before_step(scheduled, self.batch)
        if scheduled.block_copies:
            copy_blocks(self.attention.layers, scheduled.block_copies)
        if not scheduled.num_scheduled_tokens:
            return
        batch = self.batch
        num_scheduled = [scheduled.num_scheduled_tokens[request_id] for request_id in batch.request_ids[: batch.num_rows] if request_id]
        inputs = prepare_inputs(batch, num_scheduled)
        self.attention.begin_step(
            [
                common_metadata(batch, inputs, group, device=self.device, num_decodes=num_decodes)
                for group in range(len(batch.block_tables))
            ],
            scheduled.num_common_prefix_blocks,
        )
        prompt_indices, prompt_rows = find_prompt_rows(batch, inputs)
        output = self.model.forward(
            ForwardBatch(
                input_ids=torch.from_numpy(inputs.input_ids).to(self.device),
                positions=torch.from_numpy(inputs.positions).to(self.device),
                logits_indices=torch.tensor([*inputs.logits_indices.tolist(), *prompt_indices], device=self.device),
                attention=self.attention,
            )
        )
        self.attention.end_step()
        self._pending = _Pending(inputs, output.logits, prompt_rows)

    @torch.inference_mode()
    def sample_tokens(self) -> ModelRunnerOutput:
        """Sample the logits of the last `execute_model`; the tokens become the rows' next inputs."""
        pending, self._pending = self._pending, None
        if pending is None:
            return ModelRunnerOutput(request_ids=[], sampled_token_ids=[])
        inputs, batch = pending.inputs, self.batch
        states = [state for state in batch.states[: batch.num_rows] if state is not None]
        gather_prompt_logprobs(batch, pending.prompt_rows, pending.logits)
        metadata = self._sampling_metadata(states)
        is_partial = inputs.is_partial.tolist()
        metadata.generators = kept_generators(states, is_partial)
        sampled = self.sampler.sample(SampleRequest(logits=pending.logits[: inputs.num_reqs], metadata=metadata))
        output = ModelRunnerOutput(request_ids=[state.request_id for state in states], sampled_token_ids=[])
        for row, (state, token_ids) in enumerate(zip(states, sampled.token_ids.tolist(), strict=True)):
            kept = [] if is_partial[row] else [token_id for token_id in token_ids if token_id >= 0]
            output.sampled_token_ids.append(kept)
            for token_id in kept:
                batch.append_token(row, token_id)
            if token_ids[0] < 0:
                output.errors[state.request_id] = UNUSABLE_LOGITS
            elif kept and state.sampling_params.prompt_logprobs is not None and len(state.output_token_ids) == len(kept):
                output.prompt_logprobs[state.request_id] = state.prompt_logprobs
                state.prompt_logprobs = []
        if sampled.logprobs is not None:
            output.logprobs = _logprobs_of_rows(states, is_partial, sampled.logprobs)
        return output

    def _sampling_metadata(self, states: Sequence[RunnerRequestState]) -> SamplingMetadata:
        if self._metadata is None or self.batch.rows_changed:
            self._metadata = sampling_metadata(states, vocab_size=self.model.vocab_size, device=self.device)
            self.batch.rows_changed = False
        return self._metadata


def _logprobs_of_rows(
    states: Sequence[RunnerRequestState], is_partial: Sequence[bool], tensors: LogprobsTensors
) -> dict[str, list[TokenLogprobs]]:
    """Cut each row's logprobs to the number its request asked for."""
    ids, values, ranks = tensors.token_ids.tolist(), tensors.logprobs.tolist(), tensors.ranks.tolist()
    found = {}
    for row, state in enumerate(states):
        wanted = state.sampling_params.logprobs
        if wanted is not None and not is_partial[row]:
            stop = len(ids[row]) if wanted == -1 else wanted + 1
            found[state.request_id] = [TokenLogprobs(token_ids=ids[row][:stop], logprobs=values[row][:stop], rank=ranks[row])]
    return found
