"""How torch's threads wait for each other.

What this file does not know: torch.
"""

from __future__ import annotations

import os
import sys


def let_openmp_sleep() -> None:
    """Have OpenMP's threads sleep while they have nothing to do; to be called before torch is imported, afterwards it changes nothing.

    By default they look for work for milliseconds after each parallel operator of torch, on the very cores that the native kernels want
    next (docs/decisions/0025). Who sets OMP_WAIT_POLICY has the last word.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
