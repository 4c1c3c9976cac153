"""What a row may see, and how to tell rows apart by hiding some of them.

What this file does not know: blocks, tensors.
"""

from __future__ import annotations

from typing import Protocol


class Narrowed(Protocol):
    """A layer, or a KV group of such layers."""

    @property
    def sliding_window(self) -> int | None:
        """Positions seen, the own one included; None = no window."""

    @property
    def chunk_len(self) -> int | None:
        """Positions per chunk; None = no chunks."""


def first_visible(layer: Narrowed, position: int) -> int:
    """First position that a token at `position` sees."""
    first = 0
    if layer.sliding_window is not None:
        first = max(first, position - layer.sliding_window + 1)
    if layer.chunk_len is not None:
        first = max(first, position // layer.chunk_len * layer.chunk_len)
    return first


def separating_subsets(num_rows: int) -> list[list[int]]:
    """Sets of rows such that for any two rows some set holds the first and not the second: 2 * ceil(log2(num_rows)) of them.

    Row r is in set (bit, value) if that bit of r has that value; two rows differ in some bit.
    """
    if num_rows <= 1:
        return [list(range(num_rows))]
    bits = range((num_rows - 1).bit_length())
    return [[row for row in range(num_rows) if row >> bit & 1 == value] for bit in bits for value in (0, 1)]
