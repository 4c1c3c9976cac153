"""How long a backend takes beside the `reference`, for orientation: `slotwise bench attention` measures properly.

What this file does not know: whether results are right.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from slotwise.testing.attention_kit import AttentionKit
from slotwise.testing.attention_scenario import Scenario

REFERENCE: Final = "reference"
NUM_REPEATS: Final = 3
SHAPES: Final[dict[str, tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "decode, 8 rows of 256": ((1,) * 8, (256,) * 8),
    "prefill, 1 row of 128": ((128,), (128,)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Median microseconds of one forward."""

    shape: str
    backend_us: float
    reference_us: float

    @property
    def ratio(self) -> float:
        """Times the reference's speed."""
        return self.reference_us / self.backend_us

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {"shape": self.shape, "backend_us": self.backend_us, "reference_us": self.reference_us, "ratio": self.ratio}


def time_beside_reference(kit: type[AttentionKit], reference: type[AttentionKit]) -> tuple[Timing, ...]:
    """Each shape, in the backend's widest dtype that the reference has too."""
    return tuple(
        Timing(shape=shape, backend_us=_median_us(kit(), lens), reference_us=_median_us(reference(), lens, like=kit()))
        for shape, lens in SHAPES.items()
    )


def _median_us(kit: AttentionKit, lens: tuple[tuple[int, ...], tuple[int, ...]], like: AttentionKit | None = None) -> float:
    chosen = like or kit
    dtype = next((dtype for dtype in chosen.dtypes() if dtype != "float64"), chosen.dtypes()[0])
    scenario = Scenario(
        query_lens=lens[0],
        seq_lens=lens[1],
        dtype=dtype,
        head_dim=chosen.head_dims()[0],
        block_size=max(s for s in chosen.block_sizes() if s <= 512),
    )
    batch = kit.batch(scenario)
    backend = kit.make_backend(batch)
    cache = kit.make_cache(backend, batch)
    kit.write_step(backend, batch, cache)
    call = kit.call(batch, cache, backend.build_metadata(kit.request(batch)))
    backend.forward(call)
    return statistics.median(_microseconds(lambda: backend.forward(call), batch.device) for _ in range(NUM_REPEATS))


def _microseconds(function: Callable[[], None], device: str) -> float:
    start = time.perf_counter_ns()
    function()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return (time.perf_counter_ns() - start) / 1e3
