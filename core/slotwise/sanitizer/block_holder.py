"""Where a block stands in block tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holder:
    """One place of a block in a block table."""

    request_id: str
    group: int
    index: int
    """Entry of the block table; its positions are index * block_size and on."""
