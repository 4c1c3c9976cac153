"""Chunked local attention of length C: position p sees (p // C) * C .. p, so a new chunk forgets everything before it at once."""

from __future__ import annotations

from slotwise.interfaces.kv_cache import KVGroup
from slotwise_plugins.kv_cache.block_group import BlockGroup
from slotwise_plugins.kv_cache.pool import BlockPool


class ChunkedLocalGroup(BlockGroup):
    """Layers of kind `chunked_local`."""

    def __init__(self, group: KVGroup, pool: BlockPool, hash_granularity: int) -> None:
        super().__init__(group, pool, hash_granularity)
        if group.chunk_len is None or group.chunk_len < 1:
            raise ValueError(f"KV group {group.index} is of kind chunked_local with chunk_len {group.chunk_len}; give 1 or more tokens.")
        self._chunk_len = group.chunk_len

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return num_computed_tokens // self._chunk_len * self._chunk_len

    def next_skip(self, num_skipped_blocks: int) -> int:
        return -(-(num_skipped_blocks + 1) * self.block_size // self._chunk_len) * self._chunk_len

    @property
    def num_history_tokens(self) -> int | None:
        return self._chunk_len - 1
