"""What the linear components claim. Imports no torch."""

from __future__ import annotations

from slotwise.interfaces.linear import LinearCapabilities

TORCH = LinearCapabilities(devices=("cpu", "cuda"), dtypes=("float32", "bfloat16", "float16"), preference={"cpu": 10, "cuda": 10})
BLOCK_SCHEMES = ("F32", "BF16", "F16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
"""What the packing kernel reads; in its order."""
DENSE = LinearCapabilities(block_schemes=BLOCK_SCHEMES, preference={"cpu": 50})
QUANTISED = LinearCapabilities(block_schemes=BLOCK_SCHEMES)
