"""The attention dispatch of an engine with `kv_cache.sanitize`: every layer's turn, with the checks around it.

What this file does not know: how a check is made, and how it is worded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slotwise.engine.attention_dispatch import AttentionDispatch, AttentionPart, BoundLayer, GroupBackends
from slotwise.engine.input_batch import InputBatch
from slotwise.engine.scheduler_output import SchedulerOutput
from slotwise.errors import ConfigError
from slotwise.interfaces.attention import CommonAttentionMetadata
from slotwise.interfaces.kv_cache import KVGroup
from slotwise.sanitizer.layer_turn import LayerTurn, name_of
from slotwise.sanitizer.pool_guard import PoolGuard
from slotwise.sanitizer.read_check import ReadCheck
from slotwise.sanitizer.table_check import check_tables
from slotwise.sanitizer.write_check import WriteCheck


class SanitizedAttentionDispatch(AttentionDispatch):
    """Same results as the plain dispatch, or KVSanitizerError. Poisons the whole pool when made."""

    def __init__(self, layers: Sequence[BoundLayer], groups: Sequence[GroupBackends], kv_groups: Sequence[KVGroup]) -> None:
        super().__init__(layers, groups)
        _check_layouts(self.layers, kv_groups)
        self.guard = PoolGuard(self.layers, kv_groups)

    def before_step(self, scheduled: SchedulerOutput, batch: InputBatch) -> None:
        self.guard.before_copies(scheduled, [request_id for request_id in batch.request_ids[: batch.num_rows] if request_id is not None])

    def begin_step(self, commons: Sequence[CommonAttentionMetadata], num_common_blocks: Sequence[int] = ()) -> None:
        step = self.guard.begin_step()
        for group, common in enumerate(commons):
            check_tables(step, group, common)
        super().begin_step(commons, num_common_blocks)

    def end_step(self) -> None:
        super().end_step()
        self.guard.end_step()

    def attend(
        self,
        layer_index: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        *,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        bound = self.layers[layer_index]
        parts = self._parts[bound.group]
        turn = LayerTurn(bound=bound, slots=self.guard.slots_of(bound), step=self.guard.step, key=key, value=value)
        writes = WriteCheck(turn)
        writes.nothing_changed("Something between this layer's last turn and this one")
        if key is not None:
            for part in parts:
                if not part.backend.capabilities.fused_kv_write:
                    part.write_kv(bound, key, value)
                    writes.only_written(f"{name_of(part.backend)}.write_kv", part.tokens, part.slot_mapping)

        def forward(part: AttentionPart, output: torch.Tensor) -> None:
            part.forward(bound, query, key, value, output, sinks=sinks, alibi_slopes=alibi_slopes)

        output = torch.empty(*query.shape[:2], bound.layer.value_dim, dtype=query.dtype, device=query.device)
        for part in parts:
            forward(part, output)
            who = f"{name_of(part.backend)}.forward"
            if key is not None and part.backend.capabilities.fused_kv_write:
                writes.only_written(who, part.tokens, part.slot_mapping)
            else:
                writes.nothing_changed(who)
        ReadCheck(turn, parts, forward).run(output)
        return output


def _check_layouts(layers: Sequence[BoundLayer], kv_groups: Sequence[KVGroup]) -> None:
    """Raises ConfigError for a private layout: the sanitizer must know where a slot lies."""
    for bound in layers:
        layer, shape = bound.layer, tuple(bound.kv_cache.shape)
        standard = (shape[0], 2, kv_groups[bound.group].block_size, layer.num_kv_heads, layer.head_dim)
        if shape != standard:
            raise ConfigError(
                f"kv_cache.sanitize knows the standard KV layouts (nhd, hnd); the cache of layer {layer.name!r} has shape {shape} instead "
                f"of {standard}. Set kv_cache.layout to a standard one, or sanitize = false.",
                key="kv_cache.sanitize",
            )
