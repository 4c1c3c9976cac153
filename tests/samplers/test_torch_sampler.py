from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

NAN, INF = math.nan, math.inf


def test_greedy_is_the_argmax_and_the_first_of_equals(tools):
    logits = [[0.0, 3.0, 1.0], [2.0, 2.0, 2.0], [-INF, -INF, -5.0]]
    assert tools.run(tools.make_sampler(3), logits, tools.make_metadata(3)) == [1, 0, 2]


def test_no_rows_give_no_tokens(tools):
    for temperature in (None, []):
        metadata = tools.make_metadata(0, temperature=temperature, num_logprobs=1)
        output = tools.make_sampler(3).sample(tools.make_request(torch.empty(0, 3), metadata))
        assert output.token_ids.shape == (0, 1)


@pytest.mark.parametrize("temperature", [0.0, 1e-12, 1e-6, 1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("logits", [[10, 11, 2, -3], [10, 60000, 2, -60000], [-60000, -100, -60000, -60000]])
def test_tiny_temperatures_take_the_best(tools, temperature, dtype, logits):
    assert set(tools.draws(torch.tensor(logits, dtype=dtype), 1000, temperature=temperature)) == {1}


@pytest.mark.parametrize("temperature", [0.0, 1e-12, 1e-6, 1e-5])
def test_tiny_temperatures_tell_near_equals_apart(tools, temperature):
    """At 1e-4 the exact probability of the smaller one is already 0.7 %, and 38 % at 1e-3: there it may be drawn."""
    assert set(tools.draws(torch.tensor([11.0, 11.0005]), 1000, temperature=temperature)) == {1}


def test_neighbouring_floats_stay_apart_at_any_temperature(tools):
    best = torch.tensor(12345.678)
    logits = torch.stack([torch.nextafter(best, torch.tensor(0.0)), best])
    probability = tools.reference_distribution(logits.tolist(), temperature=1e-5)[1]
    assert probability > 0.999
    assert set(tools.draws(logits, 300, temperature=1e-5)) == {1}


def chi_square(counts, probabilities):
    """Statistic and degrees of freedom over the ids that are expected at least five times."""
    expected = probabilities * counts.sum()
    large = expected >= 5
    return ((counts[large] - expected[large]) ** 2 / expected[large]).sum(), int(large.sum()) - 1


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.7, "min_p": 0.1},
        {"top_k": 9},
        {"top_p": 0.7},
        {"temperature": 0.8, "top_k": 12, "top_p": 0.8, "min_p": 0.02},
    ],
)
def test_draws_follow_the_reference_distribution(tools, rules):
    logits = np.random.default_rng(1).normal(0, 2, 30).astype(np.float32)
    probabilities = tools.reference_distribution(logits, **rules)
    options = {"temperature": 1.0, **rules}
    counts = np.bincount(tools.draws(torch.from_numpy(logits), 20_000, seed=3, **options), minlength=30)
    assert not counts[probabilities == 0].any()
    statistic, degrees = chi_square(counts, probabilities)
    assert statistic < degrees + 4 * math.sqrt(2 * degrees) + 4


def test_rows_of_one_batch_have_their_own_rules(tools):
    logits = torch.from_numpy(np.random.default_rng(2).normal(0, 1.5, 50).astype(np.float32))
    num_draws = 5000
    rows = logits.expand(3 * num_draws, -1)
    metadata = tools.make_metadata(
        3 * num_draws,
        temperature=1.0,
        top_k=[1] * num_draws + [50] * num_draws + [5] * num_draws,
        top_p=[1.0] * 2 * num_draws + [0.5] * num_draws,
    )
    ids = tools.run(tools.make_sampler(50), rows, metadata)
    supports = [set(ids[row * num_draws : (row + 1) * num_draws]) for row in range(3)]
    assert supports[0] == {int(logits.argmax())}
    assert supports[1] >= set((tools.reference_distribution(logits) > 3e-3).nonzero()[0].tolist())
    assert supports[2] == set(tools.reference_distribution(logits, top_k=5, top_p=0.5).nonzero()[0].tolist())
    for support, rules in zip(supports, [{"top_k": 1}, {}, {"top_k": 5, "top_p": 0.5}], strict=True):
        allowed = set(tools.reference_distribution(logits, **rules).nonzero()[0].tolist())
        assert set(tools.draws(logits, num_draws, temperature=1.0, **rules)) <= allowed
        assert support <= allowed


def seeded_run(tools, row_of, num_rows_at, *, num_steps=16, fields_of=None, vocab_size=40):
    """Ids of the request with seed 42, which stands in row_of(step) of a batch of num_rows_at(step) rows."""
    rng = np.random.default_rng(4)
    own_logits = rng.normal(0, 1, (num_steps, vocab_size)).astype(np.float32)
    sampler = tools.make_sampler(vocab_size, seed=int(rng.integers(100)))
    ids = []
    for step in range(num_steps):
        num_rows, row = num_rows_at(step), row_of(step)
        logits = torch.from_numpy(np.random.default_rng(step).normal(0, 1, (num_rows, vocab_size)).astype(np.float32))
        logits[row] = torch.from_numpy(own_logits[step])
        seeds = {row: 42}
        if fields_of == "seeded" and num_rows > 1:
            seeds[(row + 1) % num_rows] = 7
        rules = {"temperature": [0.8 if index == row else 1.3 for index in range(num_rows)]}
        if fields_of == "truncated":
            rules |= {"top_k": [vocab_size if index == row else 3 for index in range(num_rows)]}
            rules |= {"top_p": [1.0 if index == row else 0.4 for index in range(num_rows)]}
        positions = [step if index == row else 5 * index for index in range(num_rows)]
        ids.append(tools.run(sampler, logits, tools.make_metadata(num_rows, seeds=seeds, **rules), positions=positions)[row])
    return ids


def test_a_seed_isolates_its_request_from_the_batch(tools):
    alone = seeded_run(tools, lambda step: 0, lambda step: 1)
    assert len(set(alone)) > 3
    assert seeded_run(tools, lambda step: 0, lambda step: 2) == alone
    assert seeded_run(tools, lambda step: 0, lambda step: 2, fields_of="seeded") == alone
    assert seeded_run(tools, lambda step: 3, lambda step: 5) == alone
    assert seeded_run(tools, lambda step: step % 2, lambda step: 2 if step < 5 else 4) == alone
    assert seeded_run(tools, lambda step: 1, lambda step: 6, fields_of="truncated") == alone
    torch.manual_seed(99)
    assert seeded_run(tools, lambda step: 0, lambda step: 1) == alone


def test_rows_without_a_seed_differ_from_run_to_run(tools):
    sampler = tools.make_sampler(1000)
    logits = torch.zeros(4, 1000)
    first, second = (tools.run(sampler, logits, tools.make_metadata(4, temperature=1.0)) for _ in range(2))
    assert first != second
    assert len(set(first)) > 1


def test_equal_engine_seeds_give_equal_draws(tools):
    logits = torch.zeros(4, 1000)
    first, second, other = (
        tools.run(tools.make_sampler(1000, seed=seed), logits, tools.make_metadata(4, temperature=1.0)) for seed in (5, 5, 6)
    )
    assert first == second != other


@pytest.mark.parametrize("bad", [[NAN] * 4, [0.0, NAN, 1.0, 2.0], [0.0, INF, 1.0, 2.0], [-INF] * 4])
@pytest.mark.parametrize("rules", [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 2, "top_p": 0.9, "min_p": 0.05}])
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"])
def test_an_unusable_row_harms_no_other(tools, healthy, bad, rules, mode):
    def sample(logits):
        metadata = tools.make_metadata(3, num_logprobs=2, **rules)
        return tools.make_sampler(4, logprobs_mode=mode).sample(tools.make_request(logits.clone(), metadata))

    sick = healthy.clone()
    sick[1] = torch.tensor(bad)
    expected, output = sample(healthy), sample(sick)
    assert output.token_ids[1].item() == -1
    assert output.token_ids[[0, 2]].equal(expected.token_ids[[0, 2]])
    assert output.logprobs.logprobs[[0, 2]].equal(expected.logprobs.logprobs[[0, 2]])
    assert output.logprobs.token_ids.max() < 4
    assert expected.token_ids.min() >= 0


def test_a_row_whose_every_id_is_forbidden_is_unusable(tools, healthy):
    rows = [tools.row(), tools.row(bad_words=[[0], [1], [2], [3]]), tools.row()]
    for temperature in (None, 1.0):
        ids = tools.run(tools.make_sampler(4), healthy, tools.make_metadata(3, temperature=temperature), edits=tools.edits(4, *rows))
        assert ids[1] == -1
        assert min(ids[0], ids[2]) >= 0


def test_padding_columns_are_never_sampled(tools):
    logits = torch.tensor([[0.0, 1.0, 50.0, NAN]])
    assert tools.run(tools.make_sampler(2), logits, tools.make_metadata(1)) == [1]
    assert set(tools.draws(logits[0, :3].clone(), 1, temperature=1.0)) <= {0, 1, 2}


NUMBERS = st.integers(-160, 160).map(lambda eighths: eighths / 8)
"""Float32 holds their differences exactly, so that equal and unequal mean the same here and in float64."""


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(NUMBERS, min_size=8, max_size=8), min_size=1, max_size=3),
    st.lists(st.sampled_from([0.0, 0.3, 1.0, 2.0]), min_size=3, max_size=3),
    st.lists(st.integers(1, 8), min_size=3, max_size=3),
    st.lists(st.sampled_from([0.1, 0.5, 0.9, 1.0]), min_size=3, max_size=3),
)
def test_each_draw_lies_in_the_support_of_its_own_row(tools, rows, temperatures, top_ks, top_ps):
    num = len(rows)
    rules = {"temperature": temperatures[:num], "top_k": top_ks[:num], "top_p": top_ps[:num]}
    ids = tools.run(tools.make_sampler(8), torch.tensor(rows), tools.make_metadata(num, **rules))
    for row, token_id in enumerate(ids):
        kept = {"temperature": temperatures[row], "top_k": top_ks[row], "top_p": top_ps[row]}
        probabilities = tools.reference_distribution(np.array(rows[row], dtype=np.float32), **kept)
        # An id at the edge of a nucleus may fall either way by rounding.
        near = tools.reference_distribution(np.array(rows[row], dtype=np.float32), **{**kept, "top_p": min(kept["top_p"] + 1e-4, 1.0)})
        assert probabilities[token_id] > 0 or near[token_id] > 0
