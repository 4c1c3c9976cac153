"""One random id per row, without sending anything to the CPU: the argmax of p / e, with e drawn from Exp(1).

Source: competing exponentials; e_i / p_i is exponential with rate p_i, and the smallest of such is i with probability p_i / sum(p).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

_SMALLEST_NOISE = 2.0**-24
"""Least step of a float32 random number. A draw rounded to 0 counts as this: dividing by less would let ids win that are all but
impossible, and 0 / 0 would let dropped ones win."""


class RandomDraw:
    """Draws for the rows of a batch. Rows with a generator draw from it alone, so that their ids are the same in every batch and place; the
    others share one stream, seeded here."""

    def __init__(self, device: str, seed: int) -> None:
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._stream = np.random.default_rng(seed)

    def draw(self, scaled: torch.Tensor, generators: Mapping[int, torch.Generator]) -> torch.Tensor:
        """scaled: [num_rows, vocab_size] float32, log-probabilities up to a constant, the row's best at 0. generators: row -> its own.
        Returns [num_rows] int64."""
        on_cpu = scaled.device.type == "cpu"
        noise = self._cpu_noise(scaled, generators) if on_cpu else self._device_noise(scaled, generators)
        return scaled.exp().div_(noise.clamp_(min=_SMALLEST_NOISE)).argmax(dim=-1)

    def _device_noise(self, scaled: torch.Tensor, generators: Mapping[int, torch.Generator]) -> torch.Tensor:
        noise = torch.empty_like(scaled)
        if len(generators) < scaled.shape[0]:
            noise.exponential_(generator=self._generator)
        for row, generator in generators.items():
            noise[row].exponential_(generator=generator)
        return noise

    def _cpu_noise(self, scaled: torch.Tensor, generators: Mapping[int, torch.Generator]) -> torch.Tensor:
        """The same from numpy, whose exponentials cost a fifth of torch's on the CPU. A row's generator gives 64 bits that seed its row."""
        noise = torch.empty_like(scaled)
        rows = noise.numpy()
        numbers = np.empty(scaled.shape[1], dtype=np.float64)
        for row in range(scaled.shape[0]):
            generator = generators.get(row)
            stream = self._stream if generator is None else np.random.default_rng(_random_bits(generator))
            rows[row] = stream.standard_exponential(out=numbers)
        return noise


def _random_bits(generator: torch.Generator) -> int:
    """64 random bits as a non-negative integer."""
    return int(torch.empty((), dtype=torch.int64).random_(-(2**63), None, generator=generator)) + 2**63
