"""Linear components on weights that are in no cache: as many matrices as do not fit there take turns.

What this file does not know: how components store weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from slotwise.interfaces.linear import LinearBackend, LinearSetup
from slotwise.plugin.contract import import_implementation
from slotwise.plugin.registry import ComponentRegistry
from slotwise_contrib.bench.ceilings import Ceilings, measure_ceilings
from slotwise_contrib.bench.sample_statistics import Distribution, distribution

CACHE_BYTES = 300 * 2**20
"""More than the caches of usual machines."""
MOST_MATRICES = 64
MOST_OPERATIONS = 2e10
"""Per pass over the matrices of a case, so that many rows do not take minutes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearCase:
    """One component on one shape."""

    component: str
    out_features: int
    in_features: int
    num_rows: int
    num_bytes: int
    """Of the packed weight."""
    microseconds: Distribution
    """Of one product."""

    @property
    def gb_per_s(self) -> float:
        """Weights read per second."""
        return self.num_bytes / self.microseconds.median / 1e3

    @property
    def gflop_per_s(self) -> float:
        return 2 * self.out_features * self.in_features * self.num_rows / self.microseconds.median / 1e3


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearResult:
    """One run of the benchmark."""

    dtype: str
    num_threads: int
    ceilings: Ceilings
    cases: tuple[LinearCase, ...]

    def floor_us(self, case: LinearCase) -> float:
        """The longer of reading the weight once and multiplying at the measured rate of a float32 product."""
        operations = 2 * case.out_features * case.in_features * case.num_rows
        return max(case.num_bytes / self.ceilings.read_gb_per_s / 1e3, operations / self.ceilings.gemm_tflop_per_s / 1e6)


def measure_linear(
    names: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    rows: Sequence[int],
    *,
    dtype: str,
    num_rounds: int,
    advance: Callable[[], None],
) -> LinearResult:
    """Raises PluginError for a component that is not there."""
    registry = ComponentRegistry()
    cases = []
    for name in names:
        backend: LinearBackend = import_implementation(registry.get("linear", name))(LinearSetup(dtype=dtype, device="cpu"))
        for out_features, in_features in shapes:
            weight = torch.randn(out_features, in_features, generator=torch.Generator().manual_seed(0))
            first = backend.pack(weight)
            count = max(2, min(MOST_MATRICES, -(-CACHE_BYTES // first.num_bytes)))
            matrices = [first, *(backend.pack(weight) for _ in range(count - 1))]
            for num_rows in rows:
                x = torch.randn(num_rows, in_features).to(getattr(torch, dtype))
                out = torch.empty(num_rows, out_features)
                used = matrices[: max(2, int(MOST_OPERATIONS / (2 * weight.numel() * num_rows)))]
                samples = []
                for _ in range(num_rounds + 1):
                    began = time.perf_counter()
                    for matrix in used:
                        matrix.multiply(x, out)
                    samples.append((time.perf_counter() - began) / len(used) * 1e6)
                cases.append(
                    LinearCase(
                        component=name,
                        out_features=out_features,
                        in_features=in_features,
                        num_rows=num_rows,
                        num_bytes=first.num_bytes,
                        microseconds=distribution(samples[1:]),
                    )
                )
                advance()
    return LinearResult(dtype=dtype, num_threads=torch.get_num_threads(), ceilings=measure_ceilings("cpu", "float32"), cases=tuple(cases))
