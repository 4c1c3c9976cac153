"""What must be set before any test module is imported."""

from __future__ import annotations

import os

# Triton decides when a kernel is decorated whether it will be interpreted; there is no GPU to compile for.
os.environ.setdefault("TRITON_INTERPRET", "1")
