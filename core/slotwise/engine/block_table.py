"""Block tables of the batch's rows, one table per KV group, and the slots they give to tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slotwise.interfaces.kv_cache import NULL_BLOCK_ID


class BlockTable:
    """Row -> block ids of one KV group, kept on the CPU and changed by difference."""

    def __init__(self, *, block_size: int, max_num_rows: int, max_model_len: int) -> None:
        self.block_size = block_size
        self.max_num_blocks = -(-max_model_len // block_size)
        self.table: npt.NDArray[np.int32] = np.full((max_num_rows, self.max_num_blocks), NULL_BLOCK_ID, dtype=np.int32)
        self.num_blocks: npt.NDArray[np.int32] = np.zeros(max_num_rows, dtype=np.int32)

    def set_row(self, row: int, block_ids: Sequence[int]) -> None:
        self.num_blocks[row] = 0
        self.append_row(row, block_ids)

    def append_row(self, row: int, block_ids: Sequence[int]) -> None:
        if block_ids:
            start = self.num_blocks[row]
            self.table[row, start : start + len(block_ids)] = block_ids
            self.num_blocks[row] = start + len(block_ids)

    def move_row(self, source: int, target: int) -> None:
        count = self.num_blocks[source]
        self.table[target, :count] = self.table[source, :count]
        self.num_blocks[target] = count

    def swap_rows(self, first: int, second: int) -> None:
        count = max(self.num_blocks[first], self.num_blocks[second])
        self.table[[first, second], :count] = self.table[[second, first], :count]
        self.num_blocks[[first, second]] = self.num_blocks[[second, first]]

    def rows(self, which: int | npt.NDArray[np.int64], max_seq_len: int) -> npt.NDArray[np.int32]:
        """[num_rows, blocks of the longest row] int32; entries past a row's blocks are the null block. which: the first so many rows, or
        their indices."""
        width = -(-max_seq_len // self.block_size)
        chosen = slice(0, which) if isinstance(which, int) else which
        rows = self.table[chosen, :width].copy()
        rows[np.arange(width) >= self.num_blocks[chosen, None]] = NULL_BLOCK_ID
        return rows

    def slot_mapping(self, rows: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Slot of each token: block * block_size + offset. rows, positions: [num_tokens]."""
        blocks = self.table[rows, positions // self.block_size].astype(np.int64)
        return blocks * self.block_size + positions % self.block_size
