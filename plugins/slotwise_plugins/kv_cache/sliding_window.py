"""Sliding window W: position p sees p - W + 1 .. p, so W - 1 tokens before the next one are kept, and a hit needs only those."""

from __future__ import annotations

from slotwise.interfaces.kv_cache import KVGroup
from slotwise_plugins.kv_cache.block_group import BlockGroup
from slotwise_plugins.kv_cache.pool import BlockPool


class SlidingWindowGroup(BlockGroup):
    """Layers of kind `sliding_window`."""

    def __init__(self, group: KVGroup, pool: BlockPool, hash_granularity: int) -> None:
        super().__init__(group, pool, hash_granularity)
        if group.sliding_window is None or group.sliding_window < 1:
            raise ValueError(
                f"KV group {group.index} is of kind sliding_window with window {group.sliding_window}; give a window of 1 or more tokens."
            )
        self._window = group.sliding_window

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - self._window + 1)

    def next_skip(self, num_skipped_blocks: int) -> int:
        return (num_skipped_blocks + 1) * self.block_size + self._window - 1

    @property
    def num_history_tokens(self) -> int | None:
        return self._window - 1
