"""The whole pool under guard: its memories, their layers' slots, and what each step does to them.

Order within a step: `before_copies`, the engine's block copies, `begin_step`, the layers, `end_step`.

What this file does not know: backends, attention.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slotwise.engine.attention_dispatch import BoundLayer
from slotwise.engine.scheduler_output import SchedulerOutput
from slotwise.errors import KVSanitizerError
from slotwise.interfaces.kv_cache import BlockCopy, KVGroup
from slotwise.sanitizer.faults import KVFault
from slotwise.sanitizer.guarded_memory import GuardedMemory, LayerSlots
from slotwise.sanitizer.layer_turn import LayerTurn
from slotwise.sanitizer.ownership import KVOwnership
from slotwise.sanitizer.step_view import StepView
from slotwise.sanitizer.write_check import WriteCheck


class PoolGuard:
    """Owns what is known of the pool. `step` is valid between `begin_step` and `end_step`."""

    step: StepView

    def __init__(self, layers: Sequence[BoundLayer], kv_groups: Sequence[KVGroup]) -> None:
        self.layers = tuple(layers)
        self.ownership = KVOwnership(kv_groups, self.layers[0].kv_cache.shape[0])
        by_address: dict[int, GuardedMemory] = {}
        for bound in self.layers:
            address = bound.kv_cache.untyped_storage().data_ptr()
            if address not in by_address:
                by_address[address] = GuardedMemory(bound.kv_cache)
        self.memories = tuple(by_address.values())
        self._slots = {
            bound.layer.index: LayerSlots(by_address[bound.kv_cache.untyped_storage().data_ptr()], bound.kv_cache) for bound in self.layers
        }
        self._scheduled: SchedulerOutput | None = None
        self._request_ids: tuple[str, ...] = ()
        self._copied: list[tuple[BoundLayer, BlockCopy, torch.Tensor]] = []
        """What each layer's copies must bring over: [num_tokens, 2, num_kv_heads, head_dim] bits."""

    def slots_of(self, bound: BoundLayer) -> LayerSlots:
        """The layer's slots in its memory."""
        return self._slots[bound.layer.index]

    def before_copies(self, scheduled: SchedulerOutput, request_ids: Sequence[str]) -> None:
        """Note the step, forget what a failed one wrote, and let the engine read the sources of its copies."""
        self._scheduled, self._request_ids = scheduled, tuple(request_ids)
        self._forget_failed_step()
        self._copied = []
        for copy in scheduled.block_copies:
            for bound in self.layers:
                if bound.group == copy.group:
                    slots = self.slots_of(bound)
                    block = slots.memory.content(copy.source_block)
                    slots.memory.real[copy.source_block] = block
                    content = block.as_strided(bound.kv_cache.shape[1:], bound.kv_cache.stride()[1:])
                    self._copied.append((bound, copy, content[:, : copy.num_tokens].clone()))

    def begin_step(self) -> StepView:
        """Poison what nobody may read from now on, bring back what is hit. Raises KVSanitizerError where manager or copies are at fault."""
        scheduled = self._scheduled
        assert scheduled is not None, "before_copies comes first"
        self._check_copies()
        changes = self.ownership.advance(scheduled)
        for memory in self.memories:
            memory.renew(changes.renewed)
            memory.hide(changes.hidden)
            memory.show(changes.shown)
        self._poison(changes.dropped)
        for bound, copy, content in self._copied:
            self.slots_of(bound).image[copy.target_block, :, : copy.num_tokens] = content
        if self._copied:
            for memory in self.memories:
                memory.restore()
        self.step = StepView(self.ownership, self._request_ids, scheduled.num_scheduled_tokens)
        return self.step

    def end_step(self) -> None:
        """Every layer had its turn: what it wrote counts, and nothing else may have changed."""
        for bound in self.layers:
            turn = LayerTurn(bound=bound, slots=self.slots_of(bound), step=self.step, key=None, value=None)
            WriteCheck(turn).nothing_changed("Something after this layer's turn")
        self.ownership.finish()

    def _forget_failed_step(self) -> None:
        """Slots still being written belong to a step that raised; they hold the KV of some layers only."""
        unfinished = self.ownership.being_written
        self._poison([(-1, block, offset) for block, offset in zip(*(axis.tolist() for axis in unfinished.nonzero()), strict=True)])
        unfinished[:] = False

    def _poison(self, places: Sequence[tuple[int, int, int]]) -> None:
        """(group, block, offset); group -1 = whichever holds the block."""
        for group, block, offset in places:
            owner = self.ownership.group_of(block) if group < 0 else group
            for bound in self.layers:
                if bound.group == owner:
                    slots = self.slots_of(bound)
                    slots.poison(torch.tensor([block * slots.block_size + offset], device=bound.kv_cache.device))

    def _check_copies(self) -> None:
        for bound, copy, content in self._copied:
            slots = self.slots_of(bound)
            if not torch.equal(slots.real[copy.target_block, :, : copy.num_tokens], content):
                raise KVSanitizerError(
                    f"The engine's copy of {copy.num_tokens} tokens from block {copy.source_block} to block {copy.target_block} in layer "
                    f"{bound.layer.name!r} did not bring over what the source held. See `slotwise.engine.block_copy`.",
                    fault=KVFault.WRONG_COPY,
                    layer=bound.layer.name,
                    block_id=copy.target_block,
                )
