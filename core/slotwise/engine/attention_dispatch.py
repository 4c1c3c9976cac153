"""Which backend answers for which layer and which rows, step by step: the `AttentionContext` that models call.

Metadata is built once per step for each (KV group, backend); then every layer writes its K and V and reads them back.
Where decode and prefill rows have different backends, decode rows come first in the batch and each part sees its rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from slotwise.engine.input_batch import InputBatch
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


@dataclass(frozen=True, slots=True)
class AttentionPart:
    """Rows of the step that one backend serves."""

    backend: AttentionBackend
    metadata: Any
    slot_mapping: torch.Tensor
    tokens: slice

    def write_kv(self, bound: BoundLayer, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store the part of the batch's `key` and `value` that this backend serves."""
        self.backend.write_kv(
            KVWrite(
                layer=bound.layer,
                key=key[self.tokens],
                value=value[self.tokens],
                kv_cache=bound.kv_cache,
                slot_mapping=self.slot_mapping,
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
                query=query[self.tokens],
                key=None if key is None else key[self.tokens],
                value=None if value is None else value[self.tokens],
                kv_cache=bound.kv_cache,
                metadata=self.metadata,
                output=output[self.tokens],
                sinks=sinks,
                alibi_slopes=alibi_slopes,
            )
        )


class AttentionDispatch:
    """Lives as long as the model runner; `begin_step` gives it the batch."""

    def __init__(self, layers: Sequence[BoundLayer], groups: Sequence[GroupBackends]) -> None:
        self.layers = tuple(layers)
        self.groups = tuple(groups)
        self._parts: list[list[AttentionPart]] = []

    @property
    def needs_decodes_first(self) -> bool:
        return any(group.is_split for group in self.groups)

    def before_step(self, scheduled: SchedulerOutput, batch: InputBatch) -> None:
        """Told of each step, its rows in place, before anything touches the caches. Does nothing here."""

    def begin_step(self, commons: Sequence[CommonAttentionMetadata]) -> None:
        """`commons`: one per KV group, the same rows in each."""
        self._parts = [_parts(backends, common) for backends, common in zip(self.groups, commons, strict=True)]

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
        if key is not None and value is not None:
            for part in parts:
                if not part.backend.capabilities.fused_kv_write:
                    part.write_kv(bound, key, value)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for part in parts:
            part.forward(bound, query, key, value, output, sinks=sinks, alibi_slopes=alibi_slopes)
        return output


def _parts(backends: GroupBackends, common: CommonAttentionMetadata) -> list[AttentionPart]:
    if not backends.is_split:
        return [_part(backends.decode, common, 0)]
    split, end = common.num_decodes, common.num_reqs
    parts = []
    if split:
        parts.append(_part(backends.decode, slice_rows(common, 0, split), 0))
    if split < end:
        parts.append(_part(backends.prefill, slice_rows(common, split, end), int(common.query_start_loc_cpu[split])))
    return parts


def _part(backend: AttentionBackend, common: CommonAttentionMetadata, first_token: int) -> AttentionPart:
    metadata = backend.build_metadata(MetadataRequest(common=common))
    return AttentionPart(backend, metadata, common.slot_mapping, slice(first_token, first_token + common.num_tokens))
