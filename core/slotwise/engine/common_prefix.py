"""When a prefix that all rows share is worth announcing to a backend that can read it once for all of them.

What this file does not know: who counts the shared blocks, how a backend uses them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from slotwise.interfaces.attention import FULL, AttentionLayer, CommonAttentionMetadata

MIN_PREFIX_TOKENS: Final = 256
"""A shorter prefix costs more in merging than it saves in reading."""
MIN_ROWS: Final = 8
"""With fewer rows the keys are read few times anyway."""


def may_cascade(layers: Iterable[AttentionLayer]) -> bool:
    """Every row sees its whole prefix, and no score depends on the position, in each of these layers."""
    return all(layer.kind == FULL and not layer.has_alibi for layer in layers)


def usable_prefix_len(num_common_blocks: int, block_size: int, common: CommonAttentionMetadata) -> int:
    """Tokens of the common prefix, a multiple of `block_size`; 0 where it is not worth it.

    No row may have a query inside it, so it ends before the fewest computed tokens.
    """
    if common.num_reqs < MIN_ROWS or num_common_blocks * block_size < MIN_PREFIX_TOKENS:
        return 0
    query_lens = common.query_start_loc_cpu[1:] - common.query_start_loc_cpu[:-1]
    num_computed = int((common.seq_lens_cpu[: common.num_reqs] - query_lens[: common.num_reqs]).min())
    prefix_len = min(num_common_blocks, num_computed // block_size) * block_size
    return prefix_len if prefix_len >= MIN_PREFIX_TOKENS else 0
