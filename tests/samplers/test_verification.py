"""Drafts: the tokens are those of the plain path, or have its distribution. Larger tests are the sampler kit's."""

from __future__ import annotations

import pytest
import torch

from slotwise.interfaces.sampler import SpecDecodeRows


def spec_rows(drafts, probs=None):
    """drafts: per request."""
    counts = [len(of_request) for of_request in drafts]
    requests = [request for request, count in enumerate(counts) for _ in range(count + 1)]
    bonus = torch.tensor(counts).add(1).cumsum(0) - 1
    is_target = torch.ones(len(requests), dtype=torch.bool)
    is_target[bonus] = False
    return SpecDecodeRows(
        num_draft_tokens=tuple(counts),
        draft_token_ids=torch.tensor([token_id for of_request in drafts for token_id in of_request], dtype=torch.int64),
        draft_probs=probs,
        target_indices=is_target.nonzero().flatten(),
        bonus_indices=bonus,
        request_of_row=torch.tensor(requests),
    )


def test_greedy_drafts_are_kept_until_the_first_that_is_not_the_argmax(tools):
    logits = torch.eye(5)[[1, 2, 3, 4, 0, 1]] * 9
    rows = spec_rows([[1, 2], [], [3]])  # row 0-2 say 1 2 3, row 3 says 4, rows 4-5 say 0 1
    output = tools.make_sampler(5).sample(
        tools.make_request(logits, tools.make_metadata(3, num_logprobs=0), positions=[0] * 6, spec_decode=rows)
    )
    assert output.token_ids.tolist() == [[1, 2, 3], [4, -1, -1], [0, -1, -1]]
    assert output.logprobs.token_ids[:5, 0].tolist() == [1, 2, 3, 4, 0]


@pytest.mark.parametrize("bad_row", [0, 1, 2])
def test_an_unusable_row_ends_the_request_only_if_it_is_needed(tools, bad_row):
    logits = torch.eye(4)[[1, 2, 3, 0]] * 9
    logits[bad_row] = float("nan")
    sample = tools.make_sampler(4).sample

    def ids(drafts):
        return sample(
            tools.make_request(logits.clone(), tools.make_metadata(2), positions=[0] * 4, spec_decode=spec_rows([drafts, []]))
        ).token_ids

    kept = ids([1, 2]).tolist()
    assert kept == [[-1, -1, -1], [0, -1, -1]]
    refused = ids([3, 2]).tolist()
    assert refused == [[-1, -1, -1] if bad_row == 0 else [1, -1, -1], [0, -1, -1]]


def test_drafts_that_were_certain_give_the_tokens_of_the_plain_path(tools):
    """Position by position, with seeds, whatever was drafted."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        logits = torch.randn(4, 6, generator=generator)
        plain = [
            tools.run(
                tools.make_sampler(6), logits[place : place + 1], tools.make_metadata(1, temperature=0.9, seeds={0: 7}), positions=[place]
            )[0]
            for place in range(4)
        ]
        drafts = torch.randint(0, 6, (3,), generator=generator).tolist()
        drafts[0] = plain[0]
        metadata = tools.make_metadata(1, temperature=0.9, seeds={0: 7})
        for probs in (None, torch.zeros(3, 6)):
            request = tools.make_request(logits.clone(), metadata, positions=[0, 1, 2, 3], spec_decode=spec_rows([drafts], probs))
            ids = [token_id for token_id in tools.make_sampler(6).sample(request).token_ids[0].tolist() if token_id >= 0]
            assert ids == plain[: len(ids)]
            assert len(ids) == 1 + next((place for place in range(3) if drafts[place] != plain[place]), 3)


def test_sampled_drafts_leave_the_target_distribution(tools):
    """p = [0.6, 0.3, 0.1], q = [0.5, 0.4, 0.1]: 200,000 tokens follow p within 4 sigma; 200,000 bonus tokens behind accepted drafts too."""
    num = 200_000
    p, q = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.5, 0.4, 0.1])
    drafts = torch.multinomial(q.expand(num, -1), 1, generator=torch.Generator().manual_seed(3)).flatten()
    rows = spec_rows([[token_id] for token_id in drafts.tolist()], q.expand(num, -1))
    request = tools.make_request(
        p.log().expand(2 * num, -1).clone(), tools.make_metadata(num, temperature=1.0), positions=[0] * (2 * num), spec_decode=rows
    )
    ids = tools.make_sampler(3, seed=1).sample(request).token_ids
    for column in range(2):
        tokens = ids[:, column]
        counts = torch.bincount(tokens[tokens >= 0], minlength=3).double()
        sigma = (counts.sum() * p * (1 - p)).sqrt()
        assert ((counts - counts.sum() * p).abs() < 4 * sigma).all(), counts
    accepted = (ids[:, 1] >= 0).double().mean().item()
    assert abs(accepted - 0.9) < 4 * (0.09 / num) ** 0.5  # the overlap of p and q


def test_an_argmax_draft_with_its_softmax_would_be_wrong_and_without_is_right(tools):
    num = 200_000
    p = torch.tensor([0.6, 0.3, 0.1])
    rows = spec_rows([[0]] * num)
    request = tools.make_request(
        p.log().expand(2 * num, -1).clone(), tools.make_metadata(num, temperature=1.0), positions=[0] * (2 * num), spec_decode=rows
    )
    counts = torch.bincount(tools.make_sampler(3, seed=2).sample(request).token_ids[:, 0], minlength=3).double()
    assert ((counts - num * p).abs() < 4 * (num * p * (1 - p)).sqrt()).all()
