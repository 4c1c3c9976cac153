"""What the samplers of this package claim. Imports no torch, so that registrations can use it."""

from __future__ import annotations

from slotwise.interfaces.sampler import SamplerCapabilities

TORCH = SamplerCapabilities(devices=("cpu", "cuda"), per_request_seeds=True, speculative=False, preference={"cpu": 10, "cuda": 10})
