"""Percentiles, fitted lines, growth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise_contrib.bench.sample_statistics import distribution, fit_line, growth_exponent, percentile

SAMPLES = st.lists(st.floats(0, 1e6), min_size=1, max_size=30)


def test_percentiles_interpolate_between_neighbours() -> None:
    assert [percentile([40.0, 10.0, 30.0, 20.0], fraction) for fraction in (0, 0.5, 0.9, 1)] == [10, 25, pytest.approx(37), 40]


@given(SAMPLES)
def test_a_distribution_is_ordered_and_within_its_samples(samples: list[float]) -> None:
    found = distribution(samples)
    assert min(samples) <= found.p10 <= found.median <= found.p90 <= max(samples)
    assert found.num_samples == len(samples)


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        distribution([])


@given(st.floats(0.1, 100), st.floats(0, 1000), st.lists(st.integers(1, 4096), min_size=2, max_size=8, unique=True))
def test_a_line_is_found_again(slope: float, intercept: float, sizes: list[int]) -> None:
    line = fit_line([(float(x), intercept + slope * x) for x in sizes])
    assert line is not None
    assert line.slope == pytest.approx(slope, rel=1e-4)
    assert line.intercept == pytest.approx(intercept, rel=1e-3, abs=1e-2 * slope)


def test_one_size_gives_no_line_and_no_exponent() -> None:
    assert fit_line([(32.0, 1.0), (32.0, 2.0)]) is None
    assert growth_exponent([(32.0, 1.0)]) is None


@given(st.floats(0.5, 3), st.floats(0.1, 10))
def test_an_exponent_is_found_again(exponent: float, factor: float) -> None:
    points = [(x, factor * x**exponent) for x in (32.0, 256.0, 2048.0)]
    assert growth_exponent(points) == pytest.approx(exponent)
