"""What one call of the library computes, in our words; the versions differ only in how they are told.

What this file does not know: versions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Query rows and the keys each may see."""

    query_start_loc: torch.Tensor
    """[num_rows + 1] int32."""
    key_lens: torch.Tensor
    """[num_rows] int32."""
    max_query_len: int
    max_key_len: int
    block_table: torch.Tensor | None
    """[num_rows, max_blocks] int32; None for keys that lie like the queries (encoders)."""
    causal: bool
    """The last query sees the last key, the one before the last but one, ...: causality aligned at the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One layer's attention for some rows."""

    query: torch.Tensor
    """[num_tokens, num_heads, head_dim]."""
    key: torch.Tensor
    """[num_blocks, block_size, num_kv_heads, head_dim], or [num_tokens, num_kv_heads, head_dim] without a block table."""
    value: torch.Tensor
    rows: Rows
    scale: float
    window: tuple[int, int] | None
    """Keys seen to the left and to the right of the query's own position; None = all."""
    soft_cap: float
    """0 = none."""
    num_splits: int
    """0 = the library decides."""


class FlashLibrary(ABC):
    """One version of the library."""

    version: ClassVar[int]
    block_size_multiple_of: ClassVar[int]
    """Of paged caches."""

    @abstractmethod
    def attend(self, work: Work) -> tuple[torch.Tensor, torch.Tensor]:
        """Output [num_tokens, num_heads, head_dim] and LSE [num_heads, num_tokens] float32, natural logarithm. Rows that see no key may
        come back with any sign of infinity."""
