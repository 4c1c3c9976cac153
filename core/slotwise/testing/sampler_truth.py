"""What a sampler must do, in float64 and without any cleverness, and how likely what it did would be.

What this file does not know: samplers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from slotwise.interfaces.sampler import GREEDY_EPS
from slotwise.testing.verdicts import require

FloatArray = npt.NDArray[np.float64]
MOST_DEVIATIONS: Final = 6.0
"""A correct sampler exceeds it in one of 10^9 cases."""
FEWEST_EXPECTED: Final = 5.0
"""Rarer ids are counted together."""
_ROUNDING: Final = 1e-6
"""A mass this close below top_p, relatively, may count as reached."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Parameters of one row."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def with_seed(self, seed: int) -> Rules:
        return replace(self, seed=seed)


def distribution(logits: npt.ArrayLike, rules: Rules) -> FloatArray:
    """[vocab_size] probabilities of the next id by steps 4 to 7 of `interfaces.sampler`. logits: [vocab_size], edited already."""
    x = np.asarray(logits, dtype=np.float64)
    if rules.temperature < GREEDY_EPS:
        certain: FloatArray = np.eye(len(x))[int(np.argmax(x))]
        return certain
    x = (x - x.max()) / rules.temperature
    p = np.exp(x)
    p[p < rules.min_p * p.max()] = 0.0
    if 0 < rules.top_k < len(p):
        p[p < np.sort(p)[-rules.top_k]] = 0.0
    p /= p.sum()
    if rules.top_p < 1:
        order = np.argsort(-p, kind="stable")
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= rules.top_p * (1 - _ROUNDING)]] = 0.0
    normed: FloatArray = p / p.sum()
    return normed


def groups_by_rank(expected: FloatArray, num_groups: int) -> npt.NDArray[np.int64]:
    """[vocab_size] int64, the group of each id: the most likely ids first, groups of about the same probability. For vocabularies of which
    most ids never come."""
    order = np.argsort(-expected, kind="stable")
    found = np.empty(len(expected), dtype=np.int64)
    found[order] = np.minimum(np.cumsum(expected[order]) * num_groups, num_groups - 1).astype(np.int64)
    return found


def require_distribution(ids: npt.ArrayLike, expected: FloatArray, what: str) -> None:
    """Chi-square test of drawn ids. Source: Pearson, 1900; its distribution by Wilson and Hilferty, 1931."""
    drawn = np.asarray(ids)
    counts = np.bincount(drawn[drawn >= 0], minlength=len(expected)).astype(np.float64)
    require(len(counts) == len(expected), f"{what}: id {len(counts) - 1} was drawn from a vocabulary of {len(expected)}")
    require(not (drawn < 0).any(), f"{what}: a usable row gave no id")
    impossible = np.flatnonzero((counts > 0) & (expected == 0))
    require(not len(impossible), f"{what}: ids {impossible[:5].tolist()} were drawn, whose probability is 0")
    wanted = expected * len(drawn)
    is_rare = wanted < FEWEST_EXPECTED
    counts = np.append(counts[~is_rare], counts[is_rare].sum())
    wanted = np.append(wanted[~is_rare], wanted[is_rare].sum())
    counts, wanted = counts[wanted > 0], wanted[wanted > 0]
    degrees = len(wanted) - 1
    if degrees < 1:
        return
    statistic = float(((counts - wanted) ** 2 / wanted).sum())
    spread = 2 / (9 * degrees)
    deviations = ((statistic / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    require(
        deviations < MOST_DEVIATIONS,
        f"{what}: {len(drawn)} draws do not follow the distribution (chi-square {statistic:.1f} with {degrees} degrees of freedom, "
        f"{deviations:.1f} standard deviations)",
    )
