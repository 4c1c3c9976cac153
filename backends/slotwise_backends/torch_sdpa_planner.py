"""How `torch_sdpa` makes the plan of a step: which rows are computed together, and what is hidden from them.

Layers that agree in `PlanKey` share one plan, so everything here is computed once per step, not once per layer.

What this file does not know: tensors of a layer, how scores are computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from slotwise_backends.key_memory import KeyRows, key_rows
from slotwise_backends.key_visibility import PlanKey, RowVisibility, row_visibilities
from slotwise_backends.torch_sdpa_plan import CommonPrefix, DecodeBucket, LayerPlan, PrefillRows, QueryTile, StepMetadata

MIN_BUCKET_FILL = 0.7
"""A row joins a bucket only if it fills at least this part of the bucket's width ..."""
MAX_PADDING_TOKENS = 32
"""... or lacks no more than this."""


def plan_for(step: StepMetadata, key: PlanKey) -> LayerPlan:
    """The plan for the layers of `key`, made at its first use in the step."""
    plan = step.plans.get(key)
    if plan is None:
        plan = step.plans[key] = _Planner(step, key).plan()
    return plan


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeRow:
    """One request with one query token and the keys it sees, by index."""

    request: int
    first: int
    end: int


class _Planner:
    """Makes one plan."""

    def __init__(self, step: StepMetadata, key: PlanKey) -> None:
        self.step, self.key, self.common = step, key, step.common
        self.device = step.common.block_table.device
        self.blind: list[torch.Tensor] = []

    def plan(self) -> LayerPlan:
        decodes, prefills = [], []
        for request, visibility in row_visibilities(self.key, self.common, self.step.starts, self.step.seq_lens):
            first = visibility.num_held(visibility.first_key(visibility.first_position))
            end = visibility.num_held(visibility.key_len)
            if first >= end:
                self.blind.append(torch.arange(self.step.starts[request], self.step.starts[request + 1], device=self.device))
            elif self.step.starts[request + 1] - self.step.starts[request] == 1 and visibility.mask is None:
                decodes.append(DecodeRow(request=request, first=first, end=end))
            else:
                prefills.append(self._prefill(request, visibility, first, end))
        blind_rows = torch.cat(self.blind) if self.blind else None
        prefix_len = self.step.common_prefix_len if self.key.cascades and len(decodes) > 1 else 0
        if prefix_len and all(row.end > prefix_len for row in decodes):
            decodes = [replace(row, first=prefix_len) for row in decodes]
        else:
            prefix_len = 0
        buckets = self._buckets(decodes)
        prefix = self._prefix(decodes[0].request, prefix_len, buckets) if prefix_len else None
        return LayerPlan(prefix=prefix, buckets=buckets, prefills=tuple(prefills), blind_rows=blind_rows)

    def _prefix(self, request: int, prefix_len: int, buckets: tuple[DecodeBucket, ...]) -> CommonPrefix:
        """request: one of those that share it."""
        rows = self._rows(torch.tensor([request], device=self.device), torch.arange(prefix_len, device=self.device)[None, :])
        return CommonPrefix(query_rows=torch.cat([bucket.query_rows for bucket in buckets]), rows=rows)

    def _group(self, decodes: list[DecodeRow]) -> list[list[DecodeRow]]:
        """Buckets, longest first, so that little of each rectangle is padding."""
        groups: list[list[DecodeRow]] = []
        width = 0
        for row in sorted(decodes, key=lambda row: row.first - row.end):
            num_keys = row.end - row.first
            fits = num_keys >= min(MIN_BUCKET_FILL * width, width - MAX_PADDING_TOKENS)
            if groups and fits and (len(groups[-1]) + 1) * width <= self.step.bucket_tokens:
                groups[-1].append(row)
            else:
                groups.append([row])
                width = num_keys
        return groups

    def _buckets(self, decodes: list[DecodeRow]) -> tuple[DecodeBucket, ...]:
        buckets, num_rows = [], 0
        for rows in self._group(decodes):
            buckets.append(self._bucket(rows, slice(num_rows, num_rows + len(rows))))
            num_rows += len(rows)
        return tuple(buckets)

    def _bucket(self, rows: list[DecodeRow], members: slice) -> DecodeBucket:
        facts = [[row.request, self.step.starts[row.request], row.first, row.end - 1] for row in rows]
        requests, query_rows, first, last = torch.tensor(facts, device=self.device).t().contiguous().unbind()
        width = rows[0].end - rows[0].first
        indices = first[:, None] + torch.arange(width, device=self.device)
        is_full = all(row.end - row.first == width for row in rows)
        return DecodeBucket(
            query_rows=query_rows,
            width=width,
            rows=self._rows(requests, torch.minimum(indices, last[:, None])),
            bias=None if is_full else _bias(indices > last[:, None], self.key.dtype)[:, None, None, :],
            distance=self._decode_distance(rows, indices) if self.key.wants_distance else None,
            members=members,
        )

    def _decode_distance(self, rows: list[DecodeRow], indices: torch.Tensor) -> torch.Tensor:
        positions = torch.tensor([self.step.seq_lens[row.request] - 1 for row in rows], device=self.device)[:, None]
        keys = indices * self.common.context_parallel_size + self.common.context_parallel_rank
        return (keys - positions).abs().to(self.key.dtype)[:, None, None, :]

    def _prefill(self, request: int, visibility: RowVisibility, first: int, end: int) -> PrefillRows:
        """Keys with the indices first .. end - 1 are all that any row of the request may see."""
        indices = torch.arange(first, end, device=self.device)
        if visibility.mask is not None:
            indices = visibility.seen_only(indices)
        rows = self._rows(torch.tensor([request], device=self.device), indices[None, :])
        firsts = range(visibility.first_position, visibility.seq_len, self.step.query_tile)
        if self._is_plain_square(visibility):
            queries = slice(self.step.starts[request], self.step.starts[request + 1])
            tiles: tuple[QueryTile, ...] = (QueryTile(queries=queries, keys=slice(0, end), bias=None, is_causal=True),)
        else:
            made = [self._tile(request, visibility, each, first_gathered=first) for each in firsts]
            tiles = tuple(tile for tile in made if tile.keys.start < tile.keys.stop)
        return PrefillRows(num_keys=end - first, rows=rows, tiles=tiles)

    def _is_plain_square(self, visibility: RowVisibility) -> bool:
        """A whole prompt under the causal rule alone, which torch's kernels know."""
        is_whole = visibility.first_position == 0 and visibility.key_len == visibility.seq_len
        is_plain = visibility.causal and not visibility.may_be_blind and not self.key.is_cross and not self.key.explicit
        return is_whole and is_plain and visibility.first_key(visibility.seq_len - 1) == 0

    def _tile(self, request: int, visibility: RowVisibility, first: int, *, first_gathered: int) -> QueryTile:
        """Query positions from `first` on, which see nothing before the first one's first key nor after the last one's last."""
        end = min(first + self.step.query_tile, visibility.seq_len)
        first_key, end_key = visibility.num_held(visibility.first_key(first)), visibility.num_held(visibility.end_key(end - 1))
        queries = torch.arange(first, end, device=self.device)
        keys = visibility.key_positions(first_key, end_key, self.device)
        hidden = visibility.hidden(queries, keys)
        row_shift = self.step.starts[request] - visibility.first_position
        if visibility.may_be_blind:
            self.blind.append(hidden.all(dim=1).nonzero().squeeze(1) + first + row_shift)
        return QueryTile(
            queries=slice(first + row_shift, end + row_shift),
            keys=slice(first_key - first_gathered, end_key - first_gathered),
            bias=_bias(hidden, self.key.dtype) if bool(hidden.any()) else None,
            distance=(queries[:, None] - keys[None, :]).abs().to(self.key.dtype) if self.key.wants_distance else None,
        )

    def _rows(self, requests: torch.Tensor, indices: torch.Tensor) -> KeyRows:
        return key_rows(self.key, self.common, requests, indices, kv_layout=self.step.kv_layout, block_size=self.step.block_size)


def _bias(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))
