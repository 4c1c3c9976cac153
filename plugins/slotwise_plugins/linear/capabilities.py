"""What the linear components claim. Imports no torch."""

from __future__ import annotations

from slotwise.interfaces.linear import LinearCapabilities

TORCH = LinearCapabilities(devices=("cpu", "cuda"), dtypes=("float32", "bfloat16", "float16"), preference={"cpu": 10, "cuda": 10})
DENSE = LinearCapabilities(preference={"cpu": 50})
QUANTISED = LinearCapabilities()
