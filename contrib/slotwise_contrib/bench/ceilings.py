"""What the device can do at best, measured beside everything else: read bandwidth, and the rate of a matrix product.

What this file does not know: attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slotwise_contrib.bench.device_clock import DeviceClock
from slotwise_contrib.bench.sample_statistics import percentile

READ_BYTES = {"cpu": 256 * 2**20, "cuda": 4 * 2**30}
"""Larger than any cache."""
MATRIX_SIZE = {"cpu": 1024, "cuda": 8192}
NUM_REPEATS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Ceilings:
    """Best of a few repetitions."""

    read_gb_per_s: float
    """10^9 bytes per second, one pass over memory."""
    gemm_tflop_per_s: float
    """10^12 operations per second of a square matrix product in `dtype`."""
    dtype: str


def measure_ceilings(device: str, dtype: str) -> Ceilings:
    """Takes about a second."""
    clock = DeviceClock(device)
    kind = torch.device(device).type
    memory = torch.ones(READ_BYTES[kind] // 4, dtype=torch.float32, device=device)
    first, second = memory.chunk(2)
    read_us = [clock.microseconds(lambda: torch.dot(first, second)) for _ in range(NUM_REPEATS)]
    size = MATRIX_SIZE[kind]
    matrix = torch.randn(size, size, device=device).to(getattr(torch, dtype))
    gemm_us = [clock.microseconds(lambda: matrix @ matrix) for _ in range(NUM_REPEATS)]
    return Ceilings(
        read_gb_per_s=memory.numel() * 4 / percentile(read_us, 0.0) / 1e3,
        gemm_tflop_per_s=2 * size**3 / percentile(gemm_us, 0.0) / 1e6,
        dtype=dtype,
    )
