"""How many blocks a sequence needs over its whole life, windows taken into account.

What this file does not know: which blocks are free, and who holds them.
"""

from __future__ import annotations

from collections.abc import Sequence

from slotwise_plugins.kv_cache.block import KVBlock
from slotwise_plugins.kv_cache.block_group import BlockGroup
from slotwise_plugins.kv_cache.block_table import BlockTable


def max_request_tokens(groups: Sequence[BlockGroup], num_usable_blocks: int, max_model_len: int, max_step_tokens: int | None) -> int:
    """Longest sequence up to `max_model_len` whose blocks fit the pool at once. Need grows with length, so bisection finds it."""
    fits, too_long = 0, max_model_len + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if sum(group.peak_blocks(middle, max_step_tokens) for group in groups) <= num_usable_blocks:
            fits = middle
        else:
            too_long = middle
    return fits


def num_blocks_to_come(
    tables: Sequence[BlockTable],
    hits: Sequence[Sequence[KVBlock]],
    *,
    num_tokens: int,
    num_computed_tokens: int,
    max_step_tokens: int | None,
) -> int:
    """Blocks still to be taken from the pool until `num_tokens` tokens of a request are computed, given its tables and its hits.

    Never more than makes up the peak, so a request that `max_request_tokens` admits can always start when it is alone.
    """
    total = 0
    for table, hit in zip(tables, hits, strict=True):
        group = table.group
        num_live = len(table.blocks) + len(hit) - group.num_skipped_tokens(num_computed_tokens) // group.block_size
        peak = group.peak_blocks(num_tokens, max_step_tokens)
        total += max(0, min(table.num_missing(num_tokens, hit), peak - num_live))
    return total
