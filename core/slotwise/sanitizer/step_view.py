"""One step as the sanitizer sees it: which rows it has, which slots each row may see, and words for a slot.

What this file does not know: tensors of the cache, backends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from slotwise.interfaces.attention import AttentionLayer
from slotwise.interfaces.kv_cache import NULL_BLOCK_ID
from slotwise.sanitizer.faults import KVFault
from slotwise.sanitizer.ownership import BoolArray, IntArray, KVOwnership
from slotwise.sanitizer.visibility import Narrowed, first_visible


class StepView:
    """Made once a step, after `KVOwnership.advance`."""

    def __init__(self, ownership: KVOwnership, request_ids: Sequence[str], num_scheduled: Mapping[str, int]) -> None:
        self.ownership = ownership
        self.request_ids = tuple(request_ids)
        """By row."""
        self.computed = [ownership.held[request_id].num_computed_tokens for request_id in request_ids]
        self.seq_lens = [start + num_scheduled[request_id] for request_id, start in zip(request_ids, self.computed, strict=True)]
        self.query_start_loc = np.concatenate([[0], np.cumsum([num_scheduled[request_id] for request_id in request_ids])]).tolist()
        self._filled: dict[int, BoolArray] = {}
        self._visible: dict[tuple[int, int, int | None, int | None], IntArray] = {}

    def row_of_token(self, token: int) -> int:
        """Row whose query holds this token of the flat batch."""
        return int(np.searchsorted(self.query_start_loc, token, side="right")) - 1

    def position_of_token(self, token: int) -> int:
        """Position of a token of the flat batch in its sequence."""
        row = self.row_of_token(token)
        return self.computed[row] + token - int(self.query_start_loc[row])

    def written_slots(self, row: int, group: int) -> IntArray:
        """Slots of the row's tokens of this step."""
        return self.ownership.slots(self.request_ids[row], group, self.computed[row], self.seq_lens[row])

    def visible_slots(self, row: int, group: int, layer: Narrowed) -> IntArray:
        """Slots that some token of the row sees in such a layer."""
        key = (row, group, layer.sliding_window, layer.chunk_len)
        if key not in self._visible:
            first = first_visible(layer, self.computed[row])
            self._visible[key] = self.ownership.slots(self.request_ids[row], group, first, self.seq_lens[row])
        return self._visible[key]

    def filled_slots(self, group: int) -> BoolArray:
        """See `KVOwnership.filled_slots`. Read only."""
        if group not in self._filled:
            self._filled[group] = self.ownership.filled_slots(group)
        return self._filled[group]

    def hidden_slots(self, rows: Iterable[int], group: int, layer: Narrowed) -> IntArray:
        """Slots that may hold something and that none of these rows sees."""
        held = self.filled_slots(group).copy()
        held[self.ownership.foreign_blocks(group)] = True
        hidden = held.ravel()
        for row in rows:
            hidden[self.visible_slots(row, group, layer)] = False
        return hidden.nonzero()[0]

    def describe(self, block: int, offset: int, group: int) -> str:
        """Whose slot it is, as the end of "... which"."""
        if block == NULL_BLOCK_ID:
            return "is the null block, which pads block tables"
        holders = self.ownership.holders.get(block)
        if not holders:
            last = self.ownership.last_holder.get(block)
            return "is free and was never given out" if last is None else f"is free and was last held by request {last!r}"
        names = ", ".join(dict.fromkeys(repr(holder.request_id) for holder in holders))
        owner = f"belongs to request{'s' if ',' in names else ''} {names}"
        if holders[0].group != group:
            return f"{owner} in KV group {holders[0].group}, whose layers use the same memory"
        return f"{owner} (position {holders[0].index * self.ownership.groups[group].block_size + offset})"

    def judge_read(self, row: int, block: int, offset: int, group: int, layer: AttentionLayer) -> tuple[KVFault, str]:
        """What is wrong with this row reading that slot, and what may have caused it."""
        if block == NULL_BLOCK_ID:
            return (
                KVFault.READ_NULL_BLOCK,
                "the padding of the block table is read; stop at seq_lens[row], or before the window's first block",
            )
        holders = self.ownership.holders.get(block)
        if not holders:
            return KVFault.READ_FREE_BLOCK, "a stale block table, kept from an earlier step or another row"
        own = next((holder for holder in holders if holder.request_id == self.request_ids[row] and holder.group == group), None)
        if own is None:
            return KVFault.READ_FOREIGN_BLOCK, "a stale block table, or the wrong row of it"
        position = own.index * self.ownership.groups[group].block_size + offset
        if position >= self.seq_lens[row]:
            return (
                KVFault.READ_PAST_SEQ_LEN,
                f"position {position} is past the request's {self.seq_lens[row]} tokens; stop at seq_lens[row]",
            )
        first = first_visible(layer, self.computed[row])
        return (
            KVFault.READ_OUT_OF_WINDOW,
            f"position {position} lies before position {first}, the first that the layer's window or chunk shows",
        )
