from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from slotwise_samplers import truncation
from slotwise_samplers.truncation import keep_min_p, keep_top_k, keep_top_p


def scaled(logits, temperature=1.0):
    logits = torch.as_tensor(logits, dtype=torch.float32)
    logits = logits.unsqueeze(0) if logits.dim() == 1 else logits
    return (logits - logits.max(dim=-1, keepdim=True).values) / temperature


def kept(values):
    return [row.isfinite().nonzero().squeeze(-1).tolist() for row in values]


def p(*values):
    return torch.tensor(values, dtype=torch.float32)


PROBS = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1]))


@pytest.mark.parametrize(
    ("k", "mass", "expected"), [(2, 0.5, [0]), (1, 0.8, [0]), (3, 0.01, [0]), (4, 0.75, [0, 1, 2]), (3, 0.9, [0, 1, 2])]
)
def test_top_p_works_on_what_top_k_left_renormalised(k, mass, expected):
    assert kept(keep_top_p(keep_top_k(scaled(PROBS), torch.tensor([k])), p(mass))) == [expected]


@pytest.mark.parametrize(("temperature", "expected"), [(0.5, [0]), (1.0, [0, 1])])
def test_temperature_comes_before_top_p(temperature, expected):
    assert kept(keep_top_p(scaled([3.0, 2.0, 1.0], temperature), p(0.8))) == [expected]


def test_temperature_comes_before_min_p():
    assert kept(keep_min_p(scaled([4.0, 2.0, 0.0], 2.0), p(0.2))) == [[0, 1]]


def test_ties_with_the_kth_value_stay():
    assert kept(keep_top_k(scaled([1.0, 3.0, 2.0, 2.0, 2.0]), torch.tensor([2]))) == [[1, 2, 3, 4]]


def test_of_equals_at_the_edge_of_the_nucleus_the_lowest_ids_stay():
    assert kept(keep_top_p(scaled([0.0, 0.0, 0.0, 0.0]), p(0.5))) == [[0, 1]]
    assert kept(keep_top_p(scaled([0.0, 1.0, 0.0, 1.0]), p(0.01))) == [[1]]


@pytest.mark.parametrize("mass", [1e-12, 0.5, 0.999999])
def test_the_best_is_always_kept(mass):
    assert kept(keep_top_p(scaled([0.0, 40.0, 1.0]), p(mass))) == [[1]]


def test_a_mass_that_is_reached_exactly_is_enough():
    probs = torch.log(torch.tensor([0.5, 0.3, 0.2]))
    assert kept(keep_top_p(scaled(probs), p(0.5))) == [[0]]
    assert kept(keep_top_p(scaled(probs), p(0.8))) == [[0, 1]]


def test_rows_switched_off_keep_everything():
    rows = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    off = keep_min_p(keep_top_p(keep_top_k(scaled(rows), torch.tensor([20, 0, -1])), p(1, 1, 1)), p(0, 0, 0))
    assert off.equal(scaled(rows))
    mixed = keep_top_k(scaled(rows), torch.tensor([20, 3, 99]))
    assert [len(ids) for ids in kept(mixed)] == [20, 3, 20]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.6])
@pytest.mark.parametrize(("k", "mass"), [(10, 1.0), (0, 0.9), (25, 0.8), (0, 0.3)])
def test_keeps_what_transformers_keeps(temperature, k, mass):
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(1)) * 2
    ours = scaled(logits, temperature)
    theirs = TemperatureLogitsWarper(temperature)(None, logits)
    if k:
        ours, theirs = keep_top_k(ours, torch.full((6,), k)), TopKLogitsWarper(k)(None, theirs)
    if mass < 1:
        ours, theirs = keep_top_p(ours, torch.full((6,), mass)), TopPLogitsWarper(mass)(None, theirs)
    assert kept(ours) == kept(theirs)


@pytest.mark.parametrize("ratio", [0.05, 0.2, 1.0])
def test_min_p_keeps_what_transformers_keeps(ratio):
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(2)) * 2
    assert kept(keep_min_p(scaled(logits), torch.full((6,), ratio))) == kept(MinPLogitsWarper(ratio)(None, logits))


def test_flat_rows_are_sorted_whole_and_steep_ones_need_not_be(monkeypatch):
    """The nucleus is the same whether it lies within the first guess or not."""
    rows = torch.randn(5, 2000, generator=torch.Generator().manual_seed(3)) * torch.tensor([[0.0], [0.1], [1.0], [5.0], [30.0]])
    mass = p(0.95, 0.9, 0.97, 0.9, 0.5)
    guessed = kept(keep_top_p(scaled(rows), mass))
    monkeypatch.setattr(truncation, "_NUCLEUS_GUESS", 2000)
    assert kept(keep_top_p(scaled(rows), mass)) == guessed
    assert guessed[0] == list(range(1900))
    monkeypatch.setattr(truncation, "_NUCLEUS_GUESS", 1)
    for row in range(5):
        assert kept(keep_top_p(scaled(rows[row]), mass[row : row + 1])) == [guessed[row]]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=9), st.integers(1, 9), st.floats(0.01, 0.99))
def test_top_k_then_top_p_equals_the_definition(tools, logits, k, mass):
    expected = np.flatnonzero(tools.reference_distribution(np.array(logits), top_k=k, top_p=mass)).tolist()
    lower = np.flatnonzero(tools.reference_distribution(np.array(logits), top_k=k, top_p=mass - 1e-5)).tolist()
    upper = np.flatnonzero(tools.reference_distribution(np.array(logits), top_k=k, top_p=mass + 1e-5)).tolist()
    found = kept(keep_top_p(keep_top_k(scaled(logits), torch.tensor([k])), p(mass)))[0]
    assert found == expected if lower == upper else found in (lower, expected, upper)
