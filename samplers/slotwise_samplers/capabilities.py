"""What the samplers and logits processors of this package claim. Imports no torch, so that registrations can use it."""

from __future__ import annotations

from slotwise.config.environment import is_triton_interpreted
from slotwise.interfaces.logits_processor import LogitsProcessorCapabilities
from slotwise.interfaces.sampler import SamplerCapabilities

TORCH = SamplerCapabilities(devices=("cpu", "cuda"), speculative=True, preference={"cpu": 10, "cuda": 10})
TRITON = SamplerCapabilities(devices=("cuda", "cpu") if is_triton_interpreted() else ("cuda",), speculative=True, preference={"cuda": 30})
"""On the CPU only in Triton's interpreter (TRITON_INTERPRET=1), to examine the kernel: never by `auto`."""
FLASHINFER = SamplerCapabilities(devices=("cuda",), speculative=True, preference={"cuda": 20})

ALLOWED_TOKEN_IDS = LogitsProcessorCapabilities(order=10)
BAD_WORDS = LogitsProcessorCapabilities(order=20)
MIN_TOKENS = LogitsProcessorCapabilities(order=30)
LOGIT_BIAS = LogitsProcessorCapabilities(order=40)
THINKING_BUDGET = LogitsProcessorCapabilities(order=60)
PENALTIES = LogitsProcessorCapabilities(order=70)
