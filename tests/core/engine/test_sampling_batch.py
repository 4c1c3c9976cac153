"""From request parameters to sampler tensors."""

from __future__ import annotations

import torch

from slotwise.engine.input_batch import RunnerRequestState
from slotwise.engine.sampling_batch import kept_generators, sampling_metadata
from slotwise.sampling_params import SamplingParams


def state(seed: int | None = None, **params: object) -> RunnerRequestState:
    return RunnerRequestState(
        request_id="r",
        prompt_token_ids=[1, 2],
        sampling_params=SamplingParams(seed=seed, **params),
        block_ids=[[]],
        num_computed_tokens=0,
        stop_token_ids=frozenset({9}),
        bad_words_token_ids=[],
        generator=None if seed is None else torch.Generator().manual_seed(seed),
        output_token_ids=[5],
    )


def test_an_all_greedy_batch_has_no_tensor_at_all() -> None:
    metadata = sampling_metadata([state(temperature=0.0), state(temperature=0.0)], vocab_size=10, device="cpu")
    assert metadata.all_greedy
    assert not metadata.all_random
    assert metadata.temperature is metadata.top_k is metadata.top_p is metadata.min_p is None
    assert metadata.repetition_penalties is None
    assert metadata.output_token_ids == ()


def test_rows_without_a_limit_get_the_neutral_value_beside_rows_with_one() -> None:
    metadata = sampling_metadata([state(top_k=3), state(top_p=0.5), state()], vocab_size=10, device="cpu")
    assert metadata.top_k is not None
    assert metadata.top_p is not None
    assert metadata.top_k.tolist() == [3, 10, 10]
    assert metadata.top_p.tolist() == [1.0, 0.5, 1.0]
    assert metadata.min_p is None


def test_penalties_see_the_live_output_list() -> None:
    request = state(presence_penalty=1.0)
    metadata = sampling_metadata([request], vocab_size=10, device="cpu")
    request.output_token_ids.append(7)
    assert list(metadata.output_token_ids[0]) == [5, 7]
    assert list(metadata.prompt_token_ids[0]) == [1, 2]


def test_min_tokens_brings_the_ids_to_ban() -> None:
    assert sampling_metadata([state(), state(min_tokens=4)], vocab_size=10, device="cpu").min_tokens == {1: (4, frozenset({9}))}


def test_allowed_ids_forbid_all_others_in_their_row_only() -> None:
    mask = sampling_metadata([state(allowed_token_ids=[2, 4]), state()], vocab_size=6, device="cpu").allowed_token_ids_mask
    assert mask is not None
    assert mask.tolist() == [[True, True, False, True, False, True], [False] * 6]


def test_most_logprobs_of_any_row_are_gathered() -> None:
    assert sampling_metadata([state(), state()], vocab_size=6, device="cpu").num_logprobs is None
    assert sampling_metadata([state(logprobs=0), state()], vocab_size=6, device="cpu").num_logprobs == 0
    assert sampling_metadata([state(logprobs=2), state(logprobs=5)], vocab_size=6, device="cpu").num_logprobs == 5
    assert sampling_metadata([state(logprobs=2), state(logprobs=-1)], vocab_size=6, device="cpu").num_logprobs == -1


def test_a_discarded_row_does_not_get_its_generator() -> None:
    states = [state(seed=1), state(seed=2), state()]
    assert set(kept_generators(states, [True, False, False])) == {1}
