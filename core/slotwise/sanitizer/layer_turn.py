"""What the checks of one layer's turn share: the layer, its slots, the step, and how a fault is reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch

from slotwise.engine.attention_dispatch import BoundLayer
from slotwise.errors import KVSanitizerError
from slotwise.interfaces.attention import AttentionBackend
from slotwise.sanitizer.faults import KVFault
from slotwise.sanitizer.guarded_memory import LayerSlots
from slotwise.sanitizer.step_view import StepView


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTurn:
    """One call of `attend`."""

    bound: BoundLayer
    slots: LayerSlots
    step: StepView
    key: torch.Tensor | None
    """[num_tokens, num_kv_heads, head_dim] of the whole batch; None for a layer that shares another's KV."""
    value: torch.Tensor | None

    @property
    def label(self) -> str:
        return f"layer {self.bound.layer.name!r} (index {self.bound.layer.index})"

    def fail(self, message: str, *, fault: KVFault, request_id: str | None, block_id: int, offset: int) -> NoReturn:
        """Put the memory right, so that the engine can serve on, and raise."""
        self.slots.memory.restore()
        raise KVSanitizerError(
            message,
            fault=fault,
            layer=self.bound.layer.name,
            request_id=request_id,
            block_id=block_id,
            slot=block_id * self.slots.block_size + offset,
        )


def name_of(backend: AttentionBackend) -> str:
    """How reports call a backend."""
    return f"Attention backend {type(backend).__name__}"
