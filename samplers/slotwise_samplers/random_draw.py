"""One random id per row from one random number per row: the first id whose cumulative probability exceeds it.

The numbers are made on the CPU, 64 bits of fraction's worth each, so that a seed gives the same ones on every device; nothing is read back.
Source: inverse transform sampling (Devroye, 1986, "Non-uniform random variate generation", section III.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

DRAW, VERIFY = 0, 1
"""What a number of a seeded row is for; each purpose has a stream of its own."""
_SEED_MASK = 2**64 - 1


class RandomDraw:
    """Numbers for the rows of a batch. Rows with a seed get theirs by seed and position alone, so that their ids are the same in every
    batch, place and step; the others share one stream, seeded here."""

    def __init__(self, seed: int) -> None:
        self._stream = np.random.default_rng(seed)

    def uniforms(self, num_rows: int, seeds: Mapping[int, int], positions: Sequence[int], *, purpose: int = DRAW) -> torch.Tensor:
        """[num_rows] float64 on the CPU, in [0, 1)."""
        numbers = self._stream.random(num_rows)
        for row, seed in seeds.items():
            numbers[row] = np.random.default_rng((seed & _SEED_MASK, positions[row], purpose)).random()
        return torch.from_numpy(numbers)


def draw(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """weights: [num_rows, vocab_size] >= 0, any scale; uniforms: [num_rows] float64. Returns [num_rows] int64; an id of weight 0 is never
    drawn. Rows of NaN or without weight give some id of the vocabulary."""
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    wanted = uniforms.to(weights.device).unsqueeze(-1) * total
    wanted = torch.minimum(wanted, torch.nextafter(total, torch.zeros_like(total)))  # a product may be rounded up to the total
    return torch.searchsorted(cumulative, wanted, right=True).squeeze(-1).clamp_(max=weights.shape[-1] - 1)
