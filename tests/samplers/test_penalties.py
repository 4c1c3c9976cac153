from __future__ import annotations

import numpy as np
import pytest
import torch

from slotwise.interfaces.sampler import SampleRequest


@pytest.fixture
def processed(tools):
    """Logits after penalties, through the `processed_logits` of a greedy step."""

    def compute(logits, sampler=None, **fields):
        logits = torch.tensor(logits)
        sampler = sampler or tools.make_sampler(logits.shape[1], logprobs_mode="processed_logits")
        metadata = fields.pop("metadata", None) or tools.make_metadata(len(logits), num_logprobs=-1, **fields)
        result = sampler.sample(SampleRequest(logits=logits.clone(), metadata=metadata)).logprobs
        return torch.empty_like(logits).scatter_(1, result.token_ids[:, 1:], result.logprobs[:, 1:])

    return compute


@pytest.mark.parametrize(("logit", "expected"), [(2.0, 0.25), (-2.0, -4.75)])
def test_worked_numbers(processed, logit, expected):
    found = processed([[logit, 0.5]], penalties=(2.0, 0.5, 0.25), prompt_token_ids=[[]], output_token_ids=[[0]])
    assert found.tolist() == [[expected, 0.5]]


def test_repetition_sees_the_prompt_and_the_others_do_not(processed):
    found = processed([[2.0, 2.0, 2.0]], penalties=(2.0, 0.5, 0.25), prompt_token_ids=[[1, 1]], output_token_ids=[[0, 0]])
    assert found.tolist() == [[2.0 / 2 - 2 * 0.5 - 0.25, 1.0, 2.0]]


def test_rows_have_their_own_penalties_and_history(processed, tools):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (4, 12)).astype(np.float32)
    penalties = ([1.0, 1.3, 1.0, 0.7], [0.0, 0.5, -1.0, 0.0], [0.0, 0.0, 1.5, 2.0])
    prompts = [rng.integers(0, 12, 5).tolist() for _ in range(4)]
    outputs = [rng.integers(0, 12, size).tolist() for size in (3, 0, 6, 4)]
    found = processed(logits.tolist(), penalties=penalties, prompt_token_ids=prompts, output_token_ids=outputs).softmax(-1).numpy()
    for row in range(4):
        names = ("repetition", "frequency", "presence")
        rules = dict(zip(names, (column[row] for column in penalties), strict=True))
        expected = tools.reference_distribution(logits[row], prompt=prompts[row], output=outputs[row], **rules)
        np.testing.assert_allclose(found[row], expected, atol=1e-6)


@pytest.mark.parametrize("penalties", [(1.0, 0.0, 1.5), (2.0, 0.0, 0.0)])
def test_the_token_just_generated_is_penalised(tools, penalties):
    """Constant logits whose best, 3, is 1.0 ahead of 4: the step after 3 takes 4, with the same metadata and a growing history."""
    logits = [[0.1, 0.1, 0.1, 1.9, 1.0, 0.1]] if penalties[0] > 1 else [[0.0, 0.0, 0.0, 2.0, 1.0, 0.0]]
    output = []
    sampler = tools.make_sampler(6)
    metadata = tools.make_metadata(1, penalties=penalties, prompt_token_ids=[[0]], output_token_ids=[output])
    for _ in range(4):
        output.extend(tools.run(sampler, logits, metadata))
    assert output[:2] == [3, 4]
    fresh = []
    for _ in range(4):
        once = tools.make_metadata(1, penalties=penalties, prompt_token_ids=[[0]], output_token_ids=[list(fresh)])
        fresh.extend(tools.run(tools.make_sampler(6), logits, once))
    assert output == fresh


def test_counts_kept_over_steps_equal_counts_made_anew(processed, tools):
    rng = np.random.default_rng(1)
    outputs, prompts = [[], [5]], [[1, 2], [3]]
    sampler = tools.make_sampler(8, logprobs_mode="processed_logits")

    def make():
        rules = ([1.5, 1.0], [0.3, 0.9], [0.1, 0.0])
        return tools.make_metadata(2, num_logprobs=-1, penalties=rules, prompt_token_ids=prompts, output_token_ids=outputs)

    metadata = make()
    for step in range(12):
        logits = rng.normal(0, 3, (2, 8)).astype(np.float32).tolist()
        if step == 8:
            outputs[0].clear()  # A row that was rolled back.
        assert processed(logits, sampler, metadata=metadata).equal(processed(logits, metadata=make()))
        for output in outputs:
            output.append(int(rng.integers(8)))
    outputs[1] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]  # Another request's history in the row.
    logits = [[1.0] * 8] * 2
    assert processed(logits, sampler, metadata=metadata).equal(processed(logits, metadata=make()))


def test_tokens_in_flight_are_counted_once_they_are_known(processed, tools):
    output = [1, -1]
    sampler = tools.make_sampler(4, logprobs_mode="processed_logits")
    metadata = tools.make_metadata(1, num_logprobs=-1, penalties=(1.0, 0.5, 0.0), prompt_token_ids=[[]], output_token_ids=[output])
    assert processed([[1.0] * 4], sampler, metadata=metadata).tolist() == [[1.0, 0.5, 1.0, 1.0]]
    output[1] = 2
    assert processed([[1.0] * 4], sampler, metadata=metadata).tolist() == [[1.0, 0.5, 0.5, 1.0]]


def test_ids_without_a_logit_are_left_out(processed):
    found = processed([[1.0, 1.0]], penalties=(2.0, 0.0, 0.0), prompt_token_ids=[[0, 7, 10**6]], output_token_ids=[[]])
    assert found.tolist() == [[0.5, 1.0]]


def test_incomplete_penalties_are_refused(tools):
    metadata = tools.make_metadata(1, repetition_penalties=torch.tensor([2.0]))
    with pytest.raises(ValueError, match="all three"):
        tools.run(tools.make_sampler(2), [[0.0, 1.0]], metadata)
