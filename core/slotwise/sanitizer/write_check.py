"""Did a layer's turn change exactly the slots of the step's slot mapping, and to the K and V of its tokens?

What this file does not know: what is read.
"""

from __future__ import annotations

import torch

from slotwise.sanitizer.faults import KVFault
from slotwise.sanitizer.layer_turn import LayerTurn


class WriteCheck:
    """Of one layer's turn. Each method raises KVSanitizerError, or does nothing."""

    def __init__(self, turn: LayerTurn) -> None:
        self.turn = turn

    def nothing_changed(self, during: str) -> None:
        """`during`: what may have changed the cache, as the start of a sentence."""
        if blocks := self.turn.slots.memory.changed_blocks():
            self._report_stray(blocks[0], during, KVFault.CHANGED_OUT_OF_TURN, written=None)

    def only_written(self, who: str, tokens: slice, slot_mapping: torch.Tensor) -> None:
        """`who` wrote the K and V of `tokens` to `slot_mapping` [num_tokens], and nothing anywhere else."""
        slots = self.turn.slots
        written = slot_mapping[slot_mapping >= 0]
        before = slots.image[slots.place(written)]
        slots.accept(written)
        if blocks := slots.memory.changed_blocks():
            self._report_stray(blocks[0], who, KVFault.STRAY_WRITE, written=slot_mapping)
        self._check_values(who, tokens, slot_mapping, before)

    def _report_stray(self, block: int, who: str, fault: KVFault, *, written: torch.Tensor | None) -> None:
        turn = self.turn
        offset = turn.slots.changed_offsets(block)[0]
        slot = block * turn.slots.block_size + offset
        owner = turn.step.ownership.holders.get(block)
        hint = self._whose_content(block, offset)
        last_slot = turn.slots.real.shape[0] * turn.slots.block_size - 1
        if written is not None and slot == last_slot and bool((written < 0).any()):
            fault, hint = KVFault.PADDING_WRITE, " Likely cause: a slot of -1 is padding and must not be written; as an index it wraps to the last slot."
        expected = "outside of its slot mapping" if written is not None else "which no write of this layer's turn explains"
        turn.fail(
            f"{who} changed slot {slot} of block {block} (offset {offset}) in {turn.label}, {expected}; that block "
            f"{turn.step.describe(block, offset, turn.bound.group)}.{hint}",
            fault=fault,
            request_id=owner[0].request_id if owner else None,
            block_id=block,
            offset=offset,
        )

    def _whose_content(self, block: int, offset: int) -> str:
        """A sentence on which token's K the slot holds, if it is one of the step's."""
        turn = self.turn
        if turn.key is None:
            return ""
        cache = turn.bound.kv_cache
        same = _equals(cache[block, 0, offset].expand_as(turn.key), turn.key, cache.dtype).flatten(1).all(dim=1).nonzero()
        if not len(same):
            return ""
        token = int(same[0])
        step = turn.step
        return f" It holds the K of position {step.position_of_token(token)} of request {step.request_ids[step.row_of_token(token)]!r}."

    def _check_values(self, who: str, tokens: slice, slot_mapping: torch.Tensor, before: torch.Tensor) -> None:
        turn = self.turn
        assert turn.key is not None
        assert turn.value is not None
        kept = (slot_mapping >= 0).nonzero().squeeze(1)
        slots = slot_mapping[kept]
        key, value = turn.key[tokens][kept], turn.value[tokens][kept]
        stored = turn.bound.kv_cache[turn.slots.place(slots)]
        right_k, right_v = _right_rows(stored[:, 0], key), _right_rows(stored[:, 1], value)
        wrong = (~(right_k & right_v)).nonzero()
        if not len(wrong):
            return
        index = int(wrong[0])
        token = tokens.start + int(kept[index])
        slot = int(slots[index])
        block, offset = divmod(slot, turn.slots.block_size)
        row = turn.step.row_of_token(token)
        fault, what = KVFault.WRONG_VALUE, "holds something else than its K and V"
        if bool((turn.slots.real[block, :, offset] == before[index]).all()):
            fault, what = KVFault.MISSING_WRITE, "was not written"
        elif bool(_right_rows(stored[index : index + 1, 1], key[index : index + 1])[0]):
            what = "holds K in V's place"
        elif bool(_right_rows(stored[index : index + 1, 0], value[index : index + 1])[0]):
            what = "holds V in K's place"
        elif bool(right_v[index]):
            what = "holds a wrong K beside the right V"
        elif bool(right_k[index]):
            what = "holds a wrong V beside the right K"
        turn.fail(
            f"{who} had to write position {turn.step.position_of_token(token)} of request {turn.step.request_ids[row]!r} to slot {slot} of block "
            f"{block} (offset {offset}) in {turn.label}, but the slot {what}. Compare `write_kv` with `slotwise.engine.kv_layout`.",
            fault=fault,
            request_id=turn.step.request_ids[row],
            block_id=block,
            offset=offset,
        )


def _right_rows(stored: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """[num_tokens] bool: does each row hold the wanted values, up to rounding to the storage dtype?"""
    return _equals(stored, wanted, stored.dtype).flatten(1).all(dim=1)


def _equals(stored: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Elementwise: within two units in the last place of the coarser dtype."""
    coarser = max(torch.finfo(dtype).eps, torch.finfo(wanted.dtype).eps)
    tiny = torch.finfo(dtype).tiny
    return torch.isclose(stored.double(), wanted.to(dtype).double(), rtol=2 * coarser, atol=tiny, equal_nan=True)
