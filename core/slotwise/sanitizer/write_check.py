"""Did a layer's turn change exactly the slots of the step's slot mapping, and to the K and V of its tokens?

What this file does not know: what is read.
"""

from __future__ import annotations

import torch

from slotwise.engine.kv_layout import stored as as_stored
from slotwise.engine.kv_scales import KVScales
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
            fault, hint = (
                KVFault.PADDING_WRITE,
                " Likely cause: slot -1 is padding, never to be written; as an index it wraps to the last slot.",
            )
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
        step = turn.step
        keys = turn.key[: step.query_start_loc[-1]]
        stored = turn.bound.kv_cache[block, 0, offset].expand_as(keys)
        same = _right_rows(stored, keys, turn.bound.scales.k).nonzero()
        if not len(same):
            return ""
        token = int(same[0])
        return f" It holds the K of position {step.position_of_token(token)} of request {step.request_ids[step.row_of_token(token)]!r}."

    def _check_values(self, who: str, tokens: slice, slot_mapping: torch.Tensor, before: torch.Tensor) -> None:
        turn = self.turn
        assert turn.key is not None
        assert turn.value is not None
        kept = (slot_mapping >= 0).nonzero().squeeze(1)
        slots = slot_mapping[kept]
        key, value = turn.key[tokens][kept], turn.value[tokens][kept]
        stored = turn.slots.real[turn.slots.place(slots)].view(turn.bound.kv_cache.dtype)
        scales = turn.bound.scales
        wrong = (~(_right_rows(stored[:, 0], key, scales.k) & _right_rows(stored[:, 1], value, scales.v))).nonzero()
        if not len(wrong):
            return
        index = int(wrong[0])
        token, (block, offset) = tokens.start + int(kept[index]), divmod(int(slots[index]), turn.slots.block_size)
        fault, what = KVFault.WRONG_VALUE, _what_is_wrong(stored[index], key[index], value[index], scales)
        if bool((turn.slots.real[block, :, offset] == before[index]).all()):
            fault, what = KVFault.MISSING_WRITE, "was not written"
        request_id = turn.step.request_ids[turn.step.row_of_token(token)]
        turn.fail(
            f"{who} had to write position {turn.step.position_of_token(token)} of request {request_id!r} to slot {int(slots[index])} of "
            f"block {block} (offset {offset}) in {turn.label}, but the slot {what}. Compare `write_kv` with `slotwise.engine.kv_layout`.",
            fault=fault,
            request_id=request_id,
            block_id=block,
            offset=offset,
        )


def _what_is_wrong(stored: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scales: KVScales) -> str:
    """stored: [2, num_kv_heads, head_dim]; key, value: [num_kv_heads, head_dim]. The end of "the slot ..."."""

    def holds(place: int, wanted: torch.Tensor) -> bool:
        return bool(_right_rows(stored[place : place + 1], wanted[None], scales.v if place else scales.k)[0])

    if holds(1, key):
        return "holds K in V's place"
    if holds(0, value):
        return "holds V in K's place"
    if holds(1, value):
        return "holds a wrong K beside the right V"
    if holds(0, key):
        return "holds a wrong V beside the right K"
    return "holds something else than the token's K and V"


def _right_rows(stored: torch.Tensor, wanted: torch.Tensor, scale: float) -> torch.Tensor:
    """[num_tokens] bool: does each row hold the wanted values, within two units in the last place of the storage dtype?

    stored, wanted: [num_tokens, num_kv_heads, head_dim].
    """
    limits = torch.finfo(stored.dtype)
    right = as_stored(wanted, scale, stored.dtype).double()
    same = torch.isclose(stored.double(), right, rtol=2 * limits.eps, atol=limits.tiny, equal_nan=True)
    return same.flatten(1).all(dim=1)
