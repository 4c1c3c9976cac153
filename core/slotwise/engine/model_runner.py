"""Runs the model for what the scheduler decided: batch update, inputs, metadata, forward; then sampling, then drafts for the next step.

`execute_model` ends with logits on the device; `sample_tokens` turns them into ids, so that grammar masks can be made meanwhile.
What this file does not know: why a request is scheduled, when it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from slotwise.engine.attention_dispatch import AttentionDispatch
from slotwise.engine.batch_update import BatchUpdater
from slotwise.engine.block_copy import copy_blocks
from slotwise.engine.drafting import Drafter
from slotwise.engine.grammar_masks import GrammarMasks, apply_grammar_masks
from slotwise.engine.input_batch import InputBatch, RunnerRequestState
from slotwise.engine.logits_processors import LogitsProcessors
from slotwise.engine.logits_rows import first_logits_rows, logits_rows, spec_decode_rows
from slotwise.engine.outputs import TokenLogprobs
from slotwise.engine.prepare_inputs import StepInputs, common_metadata, prepare_inputs
from slotwise.engine.prompt_logprobs import PromptRows, find_prompt_rows, gather_prompt_logprobs
from slotwise.engine.sampling_batch import SamplingColumns
from slotwise.engine.scheduler_output import ModelRunnerOutput, SchedulerOutput
from slotwise.interfaces.model import ForwardBatch, Model
from slotwise.interfaces.sampler import LogprobsTensors, Sampler, SampleRequest, SamplingMetadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slotwise.interfaces.kv_cache import KVGroup
    from slotwise.interfaces.proposer import Proposer

UNUSABLE_HIDDEN_STATES = "the model's hidden states for this request are unusable (NaN or infinite); the prompt has no vector"
UNUSABLE_LOGITS = "the model's logits for this request are unusable (NaN, +inf, or every id at -inf); nothing can be sampled"


@dataclass(slots=True)
class _Pending:
    """A forward whose tokens are not sampled yet."""

    inputs: StepInputs
    drafts: list[list[int]]
    """Per row, those that the forward has computed; empty lists where there are none."""
    logits: torch.Tensor
    hidden_states: torch.Tensor | None
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
        processors: LogitsProcessors | None = None,
        proposer: Proposer | None = None,
    ) -> None:
        self.model = model
        self.sampler = sampler
        self.attention = attention
        self.device = device
        self.processors = processors or LogitsProcessors([])
        self.batch = InputBatch(max_num_rows=max_num_seqs, max_model_len=max_model_len, groups=groups)
        self.updater = BatchUpdater(self.batch, decode_first=attention.needs_decodes_first)
        self.drafter: Drafter | None = None
        if proposer is not None:
            self.drafter = Drafter(
                proposer,
                batch=self.batch,
                attention=attention,
                first_layer=len(model.attention_layers),
                max_model_len=max_model_len,
                device=device,
            )
        self._columns = SamplingColumns(max_num_rows=max_num_seqs, vocab_size=model.vocab_size, device=device)
        self._metadata: SamplingMetadata | None = None
        self._pools = False
        """Some row's prompt is wanted as a vector."""
        self._pending: _Pending | None = None

    @torch.inference_mode()
    def execute_model(self, scheduled: SchedulerOutput) -> None:
        """Everything up to the logits. A step without tokens only brings the batch up to date."""
        num_decodes = self.updater.apply(scheduled)
        self._follow_batch(scheduled)
        self.attention.before_step(scheduled, self.batch)
        if scheduled.block_copies:
            copy_blocks(self.attention.layers, scheduled.block_copies)
        if not scheduled.num_scheduled_tokens:
            return
        batch = self.batch
        num_scheduled = [scheduled.num_scheduled_tokens[request_id] for request_id in batch.request_ids[: batch.num_rows] if request_id]
        drafts = self._put_drafts(scheduled)
        inputs = prepare_inputs(batch, num_scheduled, [len(of_row) for of_row in drafts] if drafts else None)
        self.attention.begin_step(
            [
                common_metadata(batch, inputs, group, device=self.device, num_decodes=num_decodes)
                for group in range(len(batch.block_tables))
            ],
            scheduled.num_common_prefix_blocks,
        )
        logits_indices = inputs.logits_indices.tolist()
        prompt_indices, prompt_rows = find_prompt_rows(batch, inputs, first_row=len(logits_indices))
        output = self.model.forward(
            ForwardBatch(
                input_ids=torch.from_numpy(inputs.input_ids).to(self.device),
                positions=torch.from_numpy(inputs.positions).to(self.device),
                logits_indices=torch.tensor([*logits_indices, *prompt_indices], device=self.device),
                attention=self.attention,
                wants_hidden_states=self._pools or (self.drafter is not None and self.drafter.needs_hidden_states),
            )
        )
        self.attention.end_step()
        self._pending = _Pending(inputs, drafts or [[]] * inputs.num_reqs, output.logits, output.hidden_states, prompt_rows)

    @torch.inference_mode()
    def sample_tokens(self, masks: GrammarMasks | None = None) -> ModelRunnerOutput:
        """Sample the logits of the last `execute_model`; the tokens become the rows' next inputs. masks: of requests with a grammar."""
        pending, self._pending = self._pending, None
        if pending is None:
            return ModelRunnerOutput(request_ids=[], sampled_token_ids=[])
        inputs, batch = pending.inputs, self.batch
        states = [state for state in batch.states[: batch.num_rows] if state is not None]
        request_ids = [state.request_id for state in states]
        gather_prompt_logprobs(batch, pending.prompt_rows, pending.logits)
        if self._pools:
            self._pool_prompts(states, pending)
        first_rows = first_logits_rows(inputs).tolist()
        logits = pending.logits[: first_rows[-1]]
        if masks:
            apply_grammar_masks(logits, masks, request_ids, first_rows)
        sampled = self.sampler.sample(self._sample_request(pending, logits, request_ids))
        output = ModelRunnerOutput(request_ids=request_ids, sampled_token_ids=[])
        is_partial = inputs.is_partial.tolist()
        for row, (state, token_ids) in enumerate(zip(states, sampled.token_ids.tolist(), strict=True)):
            is_done = not is_partial[row]
            kept = [token_id for token_id in token_ids if token_id >= 0] if is_done and state.generates else []
            output.sampled_token_ids.append(kept)
            for token_id in kept:
                batch.append_token(row, token_id)
            if token_ids[0] < 0:
                output.errors[state.request_id] = UNUSABLE_LOGITS
            elif is_done and len(state.output_token_ids) == len(kept):
                _end_prompt(state, output)
        if sampled.logprobs is not None:
            output.logprobs = _logprobs_of_rows(states, output.sampled_token_ids, first_rows, sampled.logprobs)
        if self.drafter is not None:
            num_kept = [len(kept) for kept in output.sampled_token_ids]
            output.draft_token_ids = self.drafter.propose(inputs, num_kept, pending.hidden_states)
        return output

    def _pool_prompts(self, states: Sequence[RunnerRequestState], pending: _Pending) -> None:
        hidden_states, starts = pending.hidden_states, pending.inputs.query_start_loc.tolist()
        assert hidden_states is not None  # such requests are refused for a model that gives none
        for row, state in enumerate(states):
            if state.pooler is not None:
                state.pooler.add(int(self.batch.num_computed_tokens[row]), hidden_states[starts[row] : starts[row + 1]])

    def _put_drafts(self, scheduled: SchedulerOutput) -> list[list[int]]:
        """Put the scheduled drafts behind their rows' tokens. Returns them per row; empty if there are none at all."""
        drafts_of = scheduled.scheduled_spec_decode_tokens
        if not drafts_of:
            return []
        batch = self.batch
        drafts = [drafts_of.get(request_id or "", []) for request_id in batch.request_ids[: batch.num_rows]]
        for row, token_ids in enumerate(drafts):
            if token_ids:
                batch.put_drafts(row, token_ids)
        return drafts

    def _follow_batch(self, scheduled: SchedulerOutput) -> None:
        """Let sampling parameters, logits processors and drafts know who came, left and moved."""
        if (update := self.batch.take_update()) is not None:
            self._metadata = self._columns.update(update)
            self._pools = any(state is not None and state.pooler is not None for state in self.batch.states[: self.batch.num_rows])
            self.processors.update(update)
        if self.drafter is not None:
            self.drafter.forget(scheduled.finished_request_ids)

    def _sample_request(self, pending: _Pending, logits: torch.Tensor, request_ids: Sequence[str]) -> SampleRequest:
        inputs, drafts = pending.inputs, pending.drafts
        assert self._metadata is not None  # a batch with rows was followed
        spec_decode = None
        if inputs.has_drafts:
            assert self.drafter is not None  # nobody else proposes
            probs = self.drafter.probs_of(request_ids, drafts)
            spec_decode = spec_decode_rows(inputs, drafts, probs, vocab_size=self.model.vocab_size, device=self.device)
        return SampleRequest(
            logits=logits,
            metadata=self._metadata,
            positions=(inputs.positions[inputs.logits_indices] + 1).tolist(),
            edits=self.processors.bind(logits_rows(inputs, drafts)),
            spec_decode=spec_decode,
        )


def _end_prompt(state: RunnerRequestState, output: ModelRunnerOutput) -> None:
    """Hand over what was gathered from a prompt's chunks."""
    if state.sampling_params.prompt_logprobs is not None:
        output.prompt_logprobs[state.request_id] = state.prompt_logprobs
        state.prompt_logprobs = []
    if not state.generates:
        output.completed_prompts.add(state.request_id)
    if state.pooler is not None:
        embedding = state.pooler.embedding()
        if embedding is None:
            output.errors[state.request_id] = UNUSABLE_HIDDEN_STATES
        else:
            output.embeddings[state.request_id] = embedding


def _logprobs_of_rows(
    states: Sequence[RunnerRequestState], kept: Sequence[Sequence[int]], first_rows: Sequence[int], tensors: LogprobsTensors
) -> dict[str, list[TokenLogprobs]]:
    """One entry per token that a request got, cut to the number of logprobs it asked for."""
    ids, values, ranks = tensors.token_ids.tolist(), tensors.logprobs.tolist(), tensors.ranks.tolist()
    found = {}
    for request, (state, token_ids) in enumerate(zip(states, kept, strict=True)):
        wanted = state.sampling_params.logprobs
        if wanted is None or not token_ids:
            continue
        first = first_rows[request]
        found[state.request_id] = [
            TokenLogprobs(token_ids=ids[row][:stop], logprobs=values[row][:stop], rank=ranks[row])
            for row in range(first, first + len(token_ids))
            if (stop := len(ids[row]) if wanted == -1 else wanted + 1)
        ]
    return found
