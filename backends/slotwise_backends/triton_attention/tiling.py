"""Sizes of tiles, and into how many parts the keys of a step are split: chosen from a small table, not by trial runs at start.

What this file does not know: tensors, kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slotwise.interfaces.attention import AttentionLayer

MAX_SPLITS = 64
MIN_DOT = 16
"""The matrix units want no dimension smaller than this."""
PREFILL_ROWS = 64
PROGRAMS_PER_PROCESSOR = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiling:
    """Shape of one program's work."""

    block_m: int
    """Rows: query tokens times query heads of one KV head."""
    block_n: int
    """Keys per turn of the loop."""
    num_warps: int
    num_stages: int

    def query_tokens(self, layer: AttentionLayer) -> int:
        """Query tokens of a tile."""
        return self.block_m // group_size(layer)


def group_size(layer: AttentionLayer) -> int:
    """Query heads of one tile, which share a KV head: all that do, but of an MLA layer's no more than its wide sums leave registers for."""
    group = layer.num_heads // layer.num_kv_heads
    return math.gcd(group, MIN_DOT) if layer.is_mla and group > MIN_DOT else group


def num_head_groups(layer: AttentionLayer) -> int:
    """Programs that share the query heads of a token."""
    return layer.num_heads // group_size(layer)


def next_power_of_two(number: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << (number - 1).bit_length()


def cut(dim: int) -> tuple[int, int]:
    """`dim` as a power of two and the padded rest, which is 0 or at least `MIN_DOT`: 192 -> (128, 64), 20 -> (16, 16), 8 -> (16, 0)."""
    if dim <= MIN_DOT:
        return MIN_DOT, 0
    first = 1 << (dim.bit_length() - 1)
    rest = dim - first
    return first, max(MIN_DOT, next_power_of_two(rest)) if rest else 0


def choose_tiling(layer: AttentionLayer, *, is_decode: bool, element_bytes: int) -> Tiling:
    """Decode tiles hold one token's heads; prefill tiles as many tokens as fit. Wide heads and float32 get fewer rows and keys and more
    warps, so that a program's tiles stay within an SM's shared memory (99 KiB on sm_86 and sm_89, 163 KiB on sm_80, 227 KiB on sm_90) and
    its sums within the registers: `ahead_of_time` reports both."""
    group = next_power_of_two(group_size(layer))
    row_bytes = layer.head_dim * element_bytes
    is_single = element_bytes >= 4
    most = MIN_DOT if row_bytes > 512 or is_single else PREFILL_ROWS // 2 if row_bytes > 256 else PREFILL_ROWS
    rows = max(MIN_DOT if is_decode else most, group)
    keys = 64 if row_bytes <= 256 else 32 if row_bytes <= 512 else 16
    is_wide = row_bytes > 512 or rows * row_bytes >= PREFILL_ROWS * 256
    return Tiling(block_m=rows, block_n=32 if is_single else keys, num_warps=8 if is_wide else 4, num_stages=2 if row_bytes <= 256 else 1)


def choose_num_splits(*, num_tiles: int, num_processors: int, longest: int, min_split_tokens: int) -> int:
    """Enough programs for the device, but no part shorter than `min_split_tokens`."""
    wanted = num_processors * PROGRAMS_PER_PROCESSOR // max(num_tiles, 1)
    return max(1, min(wanted, longest // min_split_tokens, MAX_SPLITS))
