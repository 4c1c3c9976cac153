"""Who holds which block, and which slots hold something: followed from step to step through what the scheduler's records say.

What this file does not know: tensors, backends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from slotwise.engine.scheduler_output import HeldBlocks, SchedulerOutput
from slotwise.interfaces.kv_cache import NULL_BLOCK_ID, KVGroup
from slotwise.sanitizer.block_holder import Holder
from slotwise.sanitizer.manager_check import check_counted, check_gained, check_writable, refuse_short_table

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(kw_only=True, slots=True)
class BlockChanges:
    """What must happen to the pool's memory before the next forward."""

    renewed: list[int] = field(default_factory=list)
    """Given out anew: nothing in them counts any more."""
    hidden: list[int] = field(default_factory=list)
    """Held by nobody now; a later hit may bring them back."""
    shown: list[int] = field(default_factory=list)
    """Brought back by a hit."""
    dropped: list[tuple[int, int, int]] = field(default_factory=list)
    """(group, block, offset) of slots in held blocks that no holder counts as computed any more."""


class KVOwnership:
    """Mutated once a step by `advance`, and by `finish` when all layers are computed."""

    def __init__(self, groups: Sequence[KVGroup], num_blocks: int) -> None:
        self.groups = tuple(groups)
        self.num_blocks = num_blocks
        self.held: Mapping[str, HeldBlocks] = {}
        self.holders: dict[int, list[Holder]] = {}
        self.last_holder: dict[int, str] = {}
        """Block -> who held it last; for reports."""
        width = max(group.block_size for group in self.groups)
        self.written: BoolArray = np.zeros((num_blocks, width), dtype=np.bool_)
        """[num_blocks, block_size] slots that hold the KV of a token in every layer."""
        self.being_written: BoolArray = np.zeros_like(self.written)
        """The same for slots that the current step writes."""
        self._group_of: IntArray = np.full(num_blocks, -1, dtype=np.int64)

    def advance(self, scheduled: SchedulerOutput) -> BlockChanges:
        """Take over a step's tables. Raises KVSanitizerError where the KV cache manager contradicts itself."""
        restarted = {data.request_id for data in scheduled.scheduled_new_requests} | scheduled.scheduled_cached_requests.resumed_request_ids
        gained = set(self._gained(scheduled.held_blocks, restarted))
        before, self.held, self.holders = self.holders, scheduled.held_blocks, _holders(scheduled.held_blocks)
        copied = [(copy.target_block, self.written[copy.source_block, : copy.num_tokens].copy()) for copy in scheduled.block_copies]
        targets = {block for block, _ in copied}
        fresh = {(block, holder) for block, holder in gained if self._is_to_be_filled(holder, is_target=block in targets)}
        check_gained(self, gained, fresh)
        changes = BlockChanges(renewed=sorted({block for block, _ in fresh}))
        for block, holder in fresh:
            self._group_of[block] = holder.group
        self.written[changes.renewed] = False
        for block, flags in copied:
            self.written[block, : len(flags)] = flags
        changes.hidden = sorted(before.keys() - self.holders.keys())
        changes.shown = sorted(self.holders.keys() - before.keys() - set(changes.renewed))
        changes.dropped = self._drop_uncounted()
        self.last_holder.update((block, holders[0].request_id) for block, holders in self.holders.items())
        self._plan_writes(scheduled.num_scheduled_tokens)
        check_counted(self)
        return changes

    def finish(self) -> None:
        """Every layer wrote the step's slots."""
        self.written |= self.being_written
        self.being_written[:] = False

    def slots(self, request_id: str, group: int, start: int, stop: int) -> IntArray:
        """Slots of positions start .. stop - 1. Raises KVSanitizerError if the request's table does not reach that far."""
        size = self.groups[group].block_size
        table = np.asarray(self.held[request_id].block_ids[group], dtype=np.int64)
        positions = np.arange(start, stop)
        if stop > len(table) * size:
            refuse_short_table(request_id, group, num_blocks=len(table), size=size, position=stop - 1)
        blocks: IntArray = table[positions // size]
        return blocks * size + positions % size

    def group_of(self, block: int) -> int:
        """KV group whose KV the block holds, or held last; -1 = it was never given out."""
        return int(self._group_of[block])

    def filled_slots(self, group: int) -> BoolArray:
        """[num_blocks, block_size] slots of held blocks that hold, or get in this step, the KV of a token in this group."""
        filled = (self.written | self.being_written)[:, : self.groups[group].block_size]
        filled[self._group_of != group] = False
        unheld = np.ones(self.num_blocks, dtype=np.bool_)
        unheld[list(self.holders)] = False
        filled[unheld] = False
        return filled

    def foreign_blocks(self, group: int) -> list[int]:
        """Held blocks of other groups."""
        return [block for block in self.holders if self._group_of[block] != group]

    def _gained(self, held: Mapping[str, HeldBlocks], restarted: set[str]) -> Iterator[tuple[int, Holder]]:
        for request_id, now in held.items():
            known = None if request_id in restarted else self.held.get(request_id)
            for group, table in enumerate(now.block_ids):
                old = () if known is None else known.block_ids[group]
                for index, block in enumerate(table):
                    if block != NULL_BLOCK_ID and (index >= len(old) or old[index] != block):
                        yield block, Holder(request_id, group, index)

    def _is_to_be_filled(self, holder: Holder, *, is_target: bool) -> bool:
        """No position of the entry is computed, or a copy brings those that are; else the entry is a hit."""
        num_computed = self._computed(holder.request_id) - self._first_position(holder)
        return num_computed <= 0 or (is_target and num_computed < self.groups[holder.group].block_size)

    def _first_position(self, holder: Holder) -> int:
        return holder.index * self.groups[holder.group].block_size

    def _computed(self, request_id: str) -> int:
        return self.held[request_id].num_computed_tokens

    def _drop_uncounted(self) -> list[tuple[int, int, int]]:
        """Forget slots that were written and that no holder counts as computed: rejected drafts, a session's last token."""
        dropped = []
        for block, holders in self.holders.items():
            counted = max(self._computed(holder.request_id) - self._first_position(holder) for holder in holders)
            offsets = self.written[block].nonzero()[0]
            for offset in offsets[offsets >= counted].tolist():
                dropped.append((holders[0].group, block, offset))
                self.written[block, offset] = False
        return dropped

    def _plan_writes(self, num_scheduled: Mapping[str, int]) -> None:
        self.being_written[:] = False
        for request_id, num_tokens in num_scheduled.items():
            computed = self._computed(request_id)
            for group in self.groups:
                slots = self.slots(request_id, group.index, computed, computed + num_tokens)
                blocks, offsets = slots // group.block_size, slots % group.block_size
                check_writable(self, request_id, group, slots)
                self.being_written[blocks, offsets] = True


def _holders(held: Mapping[str, HeldBlocks]) -> dict[int, list[Holder]]:
    holders: dict[int, list[Holder]] = {}
    for request_id, blocks in held.items():
        for group, table in enumerate(blocks.block_ids):
            for index, block in enumerate(table):
                if block != NULL_BLOCK_ID:
                    holders.setdefault(block, []).append(Holder(request_id, group, index))
    return holders
