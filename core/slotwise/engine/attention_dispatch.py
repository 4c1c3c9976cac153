"""Which backend answers for which layer and which rows, step by step: the `AttentionContext` that models call.

Metadata is built once per step for each (KV group, backend); then every layer writes its K and V and reads them back.
Where decode and prefill rows have different backends, decode rows come first in the batch and each part sees its rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from slotwise.engine.common_prefix import may_cascade, usable_prefix_len
from slotwise.engine.input_batch import InputBatch
from slotwise.engine.kv_scales import NO_SCALES, KVScales
from slotwise.engine.prepare_inputs import slice_rows
from slotwise.engine.scheduler_output import SchedulerOutput
from slotwise.interfaces.attention import AttentionBackend, AttentionCall, AttentionLayer, CommonAttentionMetadata, KVWrite, MetadataRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupBackends:
    """The backends of one KV group; one object twice where both phases share it."""

    prefill: AttentionBackend
    decode: AttentionBackend

    @property
    def is_split(self) -> bool:
        return self.prefill is not self.decode


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundLayer:
    """A layer with its cache and the index of its group's metadata."""

    layer: AttentionLayer
    group: int
    kv_cache: torch.Tensor
    scales: KVScales = NO_SCALES
    """Of a quantised cache."""


@dataclass(frozen=True, slots=True)
class AttentionPart:
    """Rows of the step that one backend serves."""

    backend: AttentionBackend
    metadata: Any
    slot_mapping: torch.Tensor
    tokens: slice
    is_whole: bool = False
    """`tokens` are all of the batch."""
    common_prefix_len: int = 0
    """What `metadata` was built for."""

    def write_kv(self, bound: BoundLayer, key: torch.Tensor, value: torch.Tensor | None) -> None:
        """Store the part of the batch's `key` and `value` that this backend serves; MLA layers have no `value`."""
        self.backend.write_kv(
            KVWrite(
                layer=bound.layer,
                key=self._cut(key),
                value=None if value is None else self._cut(value),
                kv_cache=bound.kv_cache,
                slot_mapping=self.slot_mapping,
                k_scale=bound.scales.k,
                v_scale=bound.scales.v,
            )
        )

    def forward(
        self,
        bound: BoundLayer,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        output: torch.Tensor,
        *,
        sinks: torch.Tensor | None,
        alibi_slopes: torch.Tensor | None,
    ) -> None:
        """Fill this part's rows of the batch's `output`."""
        self.backend.forward(
            AttentionCall(
                layer=bound.layer,
                query=self._cut(query),
                key=None if key is None else self._cut(key),
                value=None if value is None else self._cut(value),
                kv_cache=bound.kv_cache,
                metadata=self.metadata,
                output=self._cut(output),
                sinks=sinks,
                alibi_slopes=alibi_slopes,
                k_scale=bound.scales.k,
                v_scale=bound.scales.v,
            )
        )

    def _cut(self, rows: torch.Tensor) -> torch.Tensor:
        return rows if self.is_whole else rows[self.tokens]


class AttentionDispatch:
    """Lives as long as the model runner; `begin_step` gives it the batch."""

    def __init__(self, layers: Sequence[BoundLayer], groups: Sequence[GroupBackends]) -> None:
        self.layers = tuple(layers)
        self.groups = tuple(groups)
        self._may_cascade = [may_cascade(bound.layer for bound in self.layers if bound.group == group) for group in range(len(self.groups))]
        self._twins = _twins(self.groups)
        self._parts: list[list[AttentionPart]] = []

    @property
    def needs_decodes_first(self) -> bool:
        return any(group.is_split for group in self.groups)

    def before_step(self, scheduled: SchedulerOutput, batch: InputBatch) -> None:
        """Told of each step, its rows in place, before anything touches the caches. Does nothing here."""

    def begin_step(self, commons: Sequence[CommonAttentionMetadata], num_common_blocks: Sequence[int] = ()) -> None:
        """`commons`: one per KV group, the same rows in each. `num_common_blocks`: leading blocks that all running requests share, by
        group; empty if nobody counted them."""
        self._parts = []
        for group, common in enumerate(commons):
            blocks = num_common_blocks[group] if num_common_blocks and self._may_cascade[group] else 0
            self._parts.append(self._parts_of(group, common, blocks))

    def _parts_of(self, group: int, common: CommonAttentionMetadata, num_common_blocks: int) -> list[AttentionPart]:
        backends, twin = self.groups[group], self._twins[group]
        if backends.is_split:
            return _split_parts(backends, common, num_common_blocks)
        known = None if twin is None else self._parts[twin][0]
        return [_part(backends.decode, common, None, num_common_blocks, known)]

    def end_step(self) -> None:
        """Drop the step's metadata."""
        self._parts = []

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
        """See `interfaces.model.AttentionContext.attend`."""
        bound = self.layers[layer_index]
        parts = self._parts[bound.group]
        if key is not None:
            for part in parts:
                if not part.backend.capabilities.fused_kv_write:
                    part.write_kv(bound, key, value)
        output = torch.empty(*query.shape[:2], bound.layer.value_dim, dtype=query.dtype, device=query.device)
        for part in parts:
            part.forward(bound, query, key, value, output, sinks=sinks, alibi_slopes=alibi_slopes)
        return output


def _twins(groups: Sequence[GroupBackends]) -> list[int | None]:
    """For each group the first earlier one whose metadata may differ in the block table alone: same class, equal setup, layers apart."""
    twins: list[int | None] = []
    for index, backends in enumerate(groups):
        can_update = type(backends.decode).update_block_table is not AttentionBackend.update_block_table
        earlier = range(index) if can_update and not backends.is_split else ()
        twins.append(next((other for other in earlier if _are_alike(groups[other], backends)), None))
    return twins


def _are_alike(first: GroupBackends, second: GroupBackends) -> bool:
    mine, yours = first.decode, second.decode
    return not first.is_split and type(mine) is type(yours) and replace(mine.setup, layers=()) == replace(yours.setup, layers=())


def _split_parts(backends: GroupBackends, common: CommonAttentionMetadata, num_common_blocks: int) -> list[AttentionPart]:
    split, end = common.num_decodes, common.num_reqs
    parts = []
    if split:
        parts.append(_part(backends.decode, slice_rows(common, 0, split), 0, num_common_blocks))
    if split < end:
        first_token = int(common.query_start_loc_cpu[split])
        parts.append(_part(backends.prefill, slice_rows(common, split, end), first_token, num_common_blocks))
    return parts


def _part(
    backend: AttentionBackend,
    common: CommonAttentionMetadata,
    first_token: int | None,
    num_common_blocks: int,
    twin: AttentionPart | None = None,
) -> AttentionPart:
    """first_token: None = the part is the whole batch. `twin`: the same rows in another group, whose metadata may be made over."""
    prefix_len = 0
    # A prefix summed apart is summed in another order: not where rows must not depend on their company.
    if num_common_blocks and backend.capabilities.cascade and not backend.setup.batch_invariant:
        prefix_len = usable_prefix_len(num_common_blocks, backend.setup.block_size, common)
    metadata = None
    if twin is not None and twin.common_prefix_len == prefix_len:
        metadata = backend.update_block_table(twin.metadata, common.block_table, common.slot_mapping)
    if metadata is None:
        metadata = backend.build_metadata(MetadataRequest(common=common, common_prefix_len=prefix_len))
    tokens = slice(first_token or 0, (first_token or 0) + common.num_tokens)
    return AttentionPart(backend, metadata, common.slot_mapping, tokens, first_token is None, prefix_len)
