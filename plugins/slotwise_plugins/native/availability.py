"""Whether the dense kernels were built when Slotwise was installed. Imports no torch."""

from __future__ import annotations

from pathlib import Path

LIBRARY = Path(__file__).with_name("_dense.native.so")


def missing_library() -> tuple[str, str] | None:
    """(cause, cure) if they were not."""
    if LIBRARY.exists():
        return None
    return (
        "the C kernels of dense layers were not built: no C compiler was found when Slotwise was installed.",
        "install gcc or clang, then Slotwise again: python -m pip install --force-reinstall --no-deps slotwise",
    )
