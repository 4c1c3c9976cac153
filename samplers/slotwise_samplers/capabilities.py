"""What the samplers and logits processors of this package claim. Imports no torch, so that registrations can use it."""

from __future__ import annotations

from slotwise.interfaces.logits_processor import LogitsProcessorCapabilities
from slotwise.interfaces.sampler import SamplerCapabilities

TORCH = SamplerCapabilities(devices=("cpu", "cuda"), speculative=True, preference={"cpu": 10, "cuda": 10})

ALLOWED_TOKEN_IDS = LogitsProcessorCapabilities(order=10)
BAD_WORDS = LogitsProcessorCapabilities(order=20)
MIN_TOKENS = LogitsProcessorCapabilities(order=30)
LOGIT_BIAS = LogitsProcessorCapabilities(order=40)
THINKING_BUDGET = LogitsProcessorCapabilities(order=60)
PENALTIES = LogitsProcessorCapabilities(order=70)
