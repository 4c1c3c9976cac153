"""Does the KV cache manager contradict itself? Each check raises KVSanitizerError, before any backend runs.

What this file does not know: how ownership is followed, tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from slotwise.errors import KVSanitizerError
from slotwise.interfaces.kv_cache import NULL_BLOCK_ID, KVGroup
from slotwise.sanitizer.block_holder import Holder
from slotwise.sanitizer.faults import KVFault
from slotwise.sanitizer.visibility import first_visible

if TYPE_CHECKING:
    from slotwise.sanitizer.ownership import IntArray, KVOwnership


def check_gained(ownership: KVOwnership, gained: set[tuple[int, Holder]], fresh: set[tuple[int, Holder]]) -> None:
    """A block to be filled has one holder, but for those that hit it in this very step; and a block serves one group.

    gained: (block, where) of every new table entry; fresh: those among them that are to be filled.
    """
    filler: dict[int, Holder] = {}
    for block, holder in sorted(fresh, key=lambda entry: (entry[0], entry[1].request_id)):
        others = [other for other in ownership.holders[block] if other != holder and (block, other) not in gained]
        if block in filler or others:
            _refuse_shared(block, holder, filler.get(block) or others[0])
        filler[block] = holder
    for block, holders in ownership.holders.items():
        group = filler[block].group if block in filler else ownership.group_of(block)
        wrong = next((holder for holder in holders if holder.group != group), None)
        if wrong is not None:
            held = "no KV yet" if group < 0 else f"KV of group {group}"
            raise KVSanitizerError(
                f"The KV cache manager gave block {block} to request {wrong.request_id!r} as computed in KV group {wrong.group}, but "
                f"it holds {held}. A block belongs to one group at a time; look at the keys of the prefix lookup.",
                fault=KVFault.SHARED_BLOCK if group >= 0 else KVFault.FALSE_HIT,
                request_id=wrong.request_id,
                block_id=block,
            )


def check_writable(ownership: KVOwnership, request_id: str, group: KVGroup, slots: IntArray) -> None:
    """No slot that the request is to write holds what another request counts as computed, or writes too."""
    blocks, offsets = slots // group.block_size, slots % group.block_size
    taken = (ownership.written[blocks, offsets] | ownership.being_written[blocks, offsets] | (blocks == NULL_BLOCK_ID)).nonzero()[0]
    if not len(taken):
        return
    slot, block = int(slots[taken[0]]), int(blocks[taken[0]])
    others = sorted({holder.request_id for holder in ownership.holders.get(block, ())} - {request_id})
    reason = "is the null block" if block == NULL_BLOCK_ID else f"request {', '.join(map(repr, others))} holds too"
    raise KVSanitizerError(
        f"The KV cache manager lets request {request_id!r} write slot {slot} of block {block} (KV group {group.index}), which {reason}. "
        "A slot that another request counts as computed may not be written.",
        fault=KVFault.SHARED_BLOCK,
        request_id=request_id,
        block_id=block,
        slot=slot,
    )


def check_counted(ownership: KVOwnership) -> None:
    """What counts as computed was written, or is written by another request in this very step."""
    valid = ownership.written | ownership.being_written
    for request_id, held in ownership.held.items():
        for group in ownership.groups:
            start, size = first_visible(group, held.num_computed_tokens), group.block_size
            slots = ownership.slots(request_id, group.index, start, held.num_computed_tokens)
            missing = (~valid[slots // size, slots % size]).nonzero()[0]
            if len(missing):
                slot = int(slots[missing[0]])
                raise KVSanitizerError(
                    f"The KV cache manager counts position {start + int(missing[0])} of request {request_id!r} as computed, but slot "
                    f"{slot} of block {slot // size} (KV group {group.index}) holds no KV. Look for a false hit: a block that stayed "
                    "findable after its step failed, was given out anew, or left the window.",
                    fault=KVFault.FALSE_HIT,
                    request_id=request_id,
                    block_id=slot // size,
                    slot=slot,
                )


def refuse_short_table(request_id: str, group: int, *, num_blocks: int, size: int, position: int) -> NoReturn:
    """The request's block table ends before `position`."""
    raise KVSanitizerError(
        f"The KV cache manager gave request {request_id!r} {num_blocks} blocks of {size} tokens in KV group {group}, but position "
        f"{position} is to be computed. `allocate` must make room for every token of the step.",
        fault=KVFault.WRONG_TABLE,
        request_id=request_id,
    )


def _refuse_shared(block: int, holder: Holder, other: Holder) -> NoReturn:
    raise KVSanitizerError(
        f"The KV cache manager gave block {block} to request {holder.request_id!r} to be filled (entry {holder.index} in KV group "
        f"{holder.group}), while request {other.request_id!r} holds it. Look for a block freed too often, or given out twice.",
        fault=KVFault.SHARED_BLOCK,
        request_id=holder.request_id,
        block_id=block,
    )
