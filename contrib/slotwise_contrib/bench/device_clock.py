"""How long a call takes on a device: events on a GPU, the wall clock elsewhere. What this file does not know: what is called."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


class DeviceClock:
    """One device's clock."""

    def __init__(self, device: str) -> None:
        self.is_cuda = torch.device(device).type == "cuda"

    def microseconds(self, function: Callable[[], Any]) -> float:
        """Of one call, from its start to the end of what it queued on the device."""
        if not self.is_cuda:
            start = time.perf_counter_ns()
            function()
            return (time.perf_counter_ns() - start) / 1e3
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        before.record()
        function()
        after.record()
        torch.cuda.synchronize()
        return float(before.elapsed_time(after) * 1e3)
