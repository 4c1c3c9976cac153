"""Who holds which block, and which slots hold something: followed from step to step through what the scheduler's records say.

What this file does not know: tensors, backends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from slotwise.engine.scheduler_output import HeldBlocks, SchedulerOutput
from slotwise.errors import KVSanitizerError
from slotwise.interfaces.kv_cache import NULL_BLOCK_ID, KVGroup
from slotwise.sanitizer.faults import KVFault
from slotwise.sanitizer.visibility import first_visible

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Holder:
    """One place where a block stands in a block table."""

    request_id: str
    group: int
    index: int
    """Entry of the block table; its positions are index * block_size and on."""


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
        fresh = {
            (block, holder) for block, holder in gained if block in targets or self._first_position(holder) >= self._computed(holder.request_id)
        }
        self._check_gained(gained, fresh)
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
        self._check_counted()
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
            raise KVSanitizerError(
                f"The KV cache manager gave request {request_id!r} {len(table)} blocks of {size} tokens in KV group {group}, but "
                f"position {stop - 1} is to be computed. Fix `allocate`.",
                fault=KVFault.WRONG_TABLE,
                request_id=request_id,
            )
        blocks: IntArray = table[positions // size]
        return blocks * size + positions % size

    def group_of(self, block: int) -> int:
        """KV group whose KV the block holds, or held last; -1 = it was never given out."""
        return int(self._group_of[block])

    def exposed(self, group: int) -> BoolArray:
        """[num_blocks, block_size of the group] slots in which something can be read now; any slot of a block of another group counts."""
        valid = self.written | self.being_written
        unheld = np.ones(self.num_blocks, dtype=np.bool_)
        unheld[list(self.holders)] = False
        valid[unheld] = False
        foreign = (self._group_of != group) & valid.any(axis=1)
        valid[foreign] = True
        return valid[:, : self.groups[group].block_size]

    def _gained(self, held: Mapping[str, HeldBlocks], restarted: set[str]) -> Iterator[tuple[int, Holder]]:
        for request_id, now in held.items():
            known = None if request_id in restarted else self.held.get(request_id)
            for group, table in enumerate(now.block_ids):
                old = () if known is None else known.block_ids[group]
                for index, block in enumerate(table):
                    if block != NULL_BLOCK_ID and (index >= len(old) or old[index] != block):
                        yield block, Holder(request_id, group, index)

    def _first_position(self, holder: Holder) -> int:
        return holder.index * self.groups[holder.group].block_size

    def _computed(self, request_id: str) -> int:
        return self.held[request_id].num_computed_tokens

    def _check_gained(self, gained: set[tuple[int, Holder]], fresh: set[tuple[int, Holder]]) -> None:
        owner: dict[int, Holder] = {}
        for block, holder in sorted(fresh, key=lambda entry: entry[0]):
            others = [other for other in self.holders[block] if other != holder and (block, other) not in gained]
            if block in owner or others:
                self._refuse_shared(block, holder, owner.get(block) or others[0])
            owner[block] = holder
        for block, holders in self.holders.items():
            group = owner[block].group if block in owner else self._group_of[block]
            wrong = next((holder for holder in holders if holder.group != group), None)
            if wrong is not None:
                raise KVSanitizerError(
                    f"The KV cache manager gave block {block} to request {wrong.request_id!r} in KV group {wrong.group}, but it holds KV of "
                    f"{'no group' if group < 0 else f'group {group}'}. A block belongs to one group at a time; look at the lookup's keys.",
                    fault=KVFault.SHARED_BLOCK,
                    request_id=wrong.request_id,
                    block_id=block,
                )

    def _refuse_shared(self, block: int, holder: Holder, other: Holder) -> None:
        raise KVSanitizerError(
            f"The KV cache manager gave block {block} to request {holder.request_id!r} to be filled (entry {holder.index} of KV group "
            f"{holder.group}), while request {other.request_id!r} holds it. Look for a block freed or popped twice.",
            fault=KVFault.SHARED_BLOCK,
            request_id=holder.request_id,
            block_id=block,
        )

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
                taken = (self.written[blocks, offsets] | self.being_written[blocks, offsets] | (blocks == NULL_BLOCK_ID)).nonzero()[0]
                if len(taken):
                    self._refuse_write(request_id, group, int(blocks[taken[0]]), int(slots[taken[0]]), computed + int(taken[0]))
                self.being_written[blocks, offsets] = True

    def _refuse_write(self, request_id: str, group: KVGroup, block: int, slot: int, position: int) -> None:
        others = sorted({holder.request_id for holder in self.holders.get(block, ())} - {request_id})
        reason = "is the null block" if block == NULL_BLOCK_ID else f"is also held by {', '.join(map(repr, others))}, which counts it as computed"
        raise KVSanitizerError(
            f"The KV cache manager lets request {request_id!r} write position {position} to slot {slot} of block {block} (KV group "
            f"{group.index}), which {reason}. A shared block may not be written.",
            fault=KVFault.SHARED_BLOCK,
            request_id=request_id,
            block_id=block,
            slot=slot,
        )

    def _check_counted(self) -> None:
        """What counts as computed was written, or is written by another request in this very step."""
        valid = self.written | self.being_written
        for request_id, held in self.held.items():
            for group in self.groups:
                start, size = first_visible(group, held.num_computed_tokens), group.block_size
                slots = self.slots(request_id, group.index, start, held.num_computed_tokens)
                missing = (~valid[slots // size, slots % size]).nonzero()[0]
                if len(missing):
                    slot = int(slots[missing[0]])
                    raise KVSanitizerError(
                        f"The KV cache manager counts position {start + int(missing[0])} of request {request_id!r} as computed, but slot {slot} "
                        f"of block {slot // size} (KV group {group.index}) was never written. Look for a false hit: a block that "
                        "stayed findable after its step failed, or was evicted, or belongs to other tokens.",
                        fault=KVFault.FALSE_HIT,
                        request_id=request_id,
                        block_id=slot // size,
                        slot=slot,
                    )


def _holders(held: Mapping[str, HeldBlocks]) -> dict[int, list[Holder]]:
    holders: dict[int, list[Holder]] = {}
    for request_id, blocks in held.items():
        for group, table in enumerate(blocks.block_ids):
            for index, block in enumerate(table):
                if block != NULL_BLOCK_ID:
                    holders.setdefault(block, []).append(Holder(request_id, group, index))
    return holders
