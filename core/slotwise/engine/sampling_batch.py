"""From the rows' `SamplingParams` to the sampler's tensors; made anew only when the batch's rows change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from slotwise.interfaces.sampler import GREEDY_EPS, SamplingMetadata
from slotwise.sampling_params import SamplingParams

if TYPE_CHECKING:
    from slotwise.engine.input_batch import RunnerRequestState


def sampling_metadata(states: Sequence[RunnerRequestState], *, vocab_size: int, device: str) -> SamplingMetadata:
    """Metadata of the rows, generators not included (they depend on which samples are kept: see `kept_generators`)."""
    params = [state.sampling_params for state in states]
    all_greedy = all(p.temperature < GREEDY_EPS for p in params)

    def column(value: Callable[[SamplingParams], float], off: float, dtype: torch.dtype = torch.float32) -> torch.Tensor | None:
        values = [value(p) for p in params]
        return None if all(v == off for v in values) else torch.tensor(values, dtype=dtype, device=device)

    has_penalties = any(p.presence_penalty or p.frequency_penalty or p.repetition_penalty != 1.0 for p in params)
    bad_words = {row: state.bad_words_token_ids for row, state in enumerate(states) if state.bad_words_token_ids}
    min_tokens = {row: (p.min_tokens, states[row].stop_token_ids) for row, p in enumerate(params) if p.min_tokens}

    def penalty(value: Callable[[SamplingParams], float]) -> torch.Tensor | None:
        return torch.tensor([value(p) for p in params], dtype=torch.float32, device=device) if has_penalties else None

    return SamplingMetadata(
        num_rows=len(states),
        all_greedy=all_greedy,
        all_random=all(p.temperature >= GREEDY_EPS for p in params),
        temperature=None if all_greedy else torch.tensor([p.temperature for p in params], dtype=torch.float32, device=device),
        top_k=None if all_greedy else column(lambda p: min(p.top_k, vocab_size) if p.top_k > 0 else vocab_size, vocab_size, torch.int32),
        top_p=None if all_greedy else column(lambda p: p.top_p, 1.0),
        min_p=None if all_greedy else column(lambda p: p.min_p, 0.0),
        presence_penalties=penalty(lambda p: p.presence_penalty),
        frequency_penalties=penalty(lambda p: p.frequency_penalty),
        repetition_penalties=penalty(lambda p: p.repetition_penalty),
        prompt_token_ids=[state.prompt_token_ids for state in states] if has_penalties else (),
        output_token_ids=[state.output_token_ids for state in states] if has_penalties or bad_words or min_tokens else (),
        allowed_token_ids_mask=_forbidden_ids(params, vocab_size, device),
        bad_words=bad_words,
        min_tokens=min_tokens,
        logit_bias={row: p.logit_bias for row, p in enumerate(params) if p.logit_bias},
        num_logprobs=_most_logprobs(params),
    )


def kept_generators(states: Sequence[RunnerRequestState], is_partial: Sequence[bool]) -> dict[int, torch.Generator]:
    """Generators of the seeded rows whose sample is kept: a discarded row draws nothing of its own, so that a seeded result does not
    depend on how the prompt was cut."""
    return {row: state.generator for row, state in enumerate(states) if state.generator is not None and not is_partial[row]}


def _forbidden_ids(params: Sequence[SamplingParams], vocab_size: int, device: str) -> torch.Tensor | None:
    if all(p.allowed_token_ids is None for p in params):
        return None
    mask = torch.zeros((len(params), vocab_size), dtype=torch.bool, device=device)
    for row, p in enumerate(params):
        if p.allowed_token_ids is not None:
            mask[row] = True
            mask[row, p.allowed_token_ids] = False
    return mask


def _most_logprobs(params: Sequence[SamplingParams]) -> int | None:
    wanted = [p.logprobs for p in params if p.logprobs is not None]
    if not wanted:
        return None
    return -1 if -1 in wanted else max(wanted)
