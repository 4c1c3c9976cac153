"""Medians, percentiles and slopes of measured samples.

What this file does not know: what was measured, or in which unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """Samples in short; in the unit of the samples."""

    num_samples: int
    median: float
    p10: float
    p90: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """y = intercept + slope * x."""

    slope: float
    intercept: float


def percentile(samples: Sequence[float], fraction: float) -> float:
    """Linear interpolation between order statistics, 0 <= fraction <= 1. Raises ValueError without samples.

    Source: Hyndman and Fan (1996), definition 7.
    """
    if not samples:
        raise ValueError("percentile of no samples; measure at least one")
    ordered = sorted(samples)
    position = fraction * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def distribution(samples: Sequence[float]) -> Distribution:
    """Raises ValueError without samples."""
    return Distribution(
        num_samples=len(samples), median=percentile(samples, 0.5), p10=percentile(samples, 0.1), p90=percentile(samples, 0.9)
    )


def fit_line(points: Sequence[tuple[float, float]]) -> Line | None:
    """The line with the least sum of squared relative errors, so that small cases count as much as large ones. None for fewer than two x.

    Source: weighted least squares with weights 1 / y^2; y must be positive.
    """
    if len({x for x, _ in points}) < 2:
        return None
    weights = [1 / (y * y) for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)) / spread
    return Line(slope=slope, intercept=mean_y - slope * mean_x)


def growth_exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """k of y ~ x^k between the smallest and the largest x: 1 = linear, 0 = independent. None for fewer than two x."""
    first, last = min(points, default=(0.0, 1.0)), max(points, default=(0.0, 1.0))
    if first[0] <= 0 or first[0] == last[0]:
        return None
    return math.log(last[1] / first[1]) / math.log(last[0] / first[0])
