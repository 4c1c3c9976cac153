"""What `torch_sdpa` prepares once a step: which cache rows each query row reads, and the masks.

A step has rows of two shapes. Requests with one query token are put into buckets of similar length and read as one padded
rectangle; requests with more are read one by one, in tiles of query rows. Layers that agree in `PlanKey` share one plan, so
everything here is computed once per step, not once per layer.

    cache memory, nhd: row = (block * 2 + {0 K, 1 V}) * block_size + offset          of num_kv_heads * head_dim elements
                  hnd: row = ((block * 2 + {0, 1}) * num_kv_heads + head) * block_size + offset        of head_dim elements

What this file does not know: tensors of a layer, how scores are computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from slotwise.interfaces.attention import HND, AttentionLayer, CommonAttentionMetadata

MIN_BUCKET_FILL = 0.7
"""A row joins a bucket only if it fills at least this part of the bucket's width ..."""
MAX_PADDING_TOKENS = 32
"""... or lacks no more than this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanKey:
    """What a plan depends on besides the batch."""

    sliding_window: int | None
    chunk_len: int | None
    num_kv_heads: int
    dtype: torch.dtype
    """Of the masks."""
    explicit: bool
    """Scores are computed openly (soft cap, sinks, LSE): every request is tiled, so that scores stay small."""

    def first_key(self, position: int) -> int:
        """First key position that `position` sees."""
        first = 0
        if self.sliding_window is not None:
            first = max(first, position - self.sliding_window + 1)
        if self.chunk_len is not None:
            first = max(first, position // self.chunk_len * self.chunk_len)
        return first


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeBucket:
    """Requests with one query token, read as a rectangle [num_rows, width] of keys."""

    query_rows: torch.Tensor
    """[num_rows] int64, rows of the flat query."""
    width: int
    k_rows: torch.Tensor
    """Rows of the cache memory, [num_rows * width] (nhd) or [num_rows * num_kv_heads * width] (hnd) int64. Padding repeats the row's last
    key, so that nothing unwritten is ever read."""
    v_rows: torch.Tensor
    bias: torch.Tensor | None
    """[num_rows, 1, 1, width], 0 or -inf; None if nothing is padded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryTile:
    """Some query rows of one request and the keys they see, as slices."""

    queries: slice
    """Of the flat query."""
    keys: slice
    """Of the request's gathered keys."""
    bias: torch.Tensor | None
    """[num_queries, num_keys], 0 or -inf; None = plain causal over a square."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillRows:
    """One request with several query tokens."""

    num_keys: int
    k_rows: torch.Tensor
    v_rows: torch.Tensor
    tiles: tuple[QueryTile, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPlan:
    """The work of one layer."""

    buckets: tuple[DecodeBucket, ...]
    prefills: tuple[PrefillRows, ...]


@dataclass(kw_only=True, slots=True)
class StepMetadata:
    """The batch, and the plans made for it so far."""

    common: CommonAttentionMetadata
    kv_layout: str
    block_size: int
    bucket_tokens: int
    query_tile: int
    starts: list[int]
    """`query_start_loc` as ints."""
    seq_lens: list[int]
    has_empty_rows: bool
    """Some query row belongs to a request without keys."""
    plans: dict[PlanKey, LayerPlan] = field(default_factory=dict)

    @property
    def num_query_rows(self) -> int:
        return self.starts[-1]

    def plan(self, layer: AttentionLayer, dtype: torch.dtype, explicit: bool) -> LayerPlan:
        """The plan for `layer`, made at its first use in the step."""
        key = PlanKey(
            sliding_window=layer.sliding_window, chunk_len=layer.chunk_len, num_kv_heads=layer.num_kv_heads, dtype=dtype, explicit=explicit
        )
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plans[key] = self._make_plan(key)
        return plan

    def _make_plan(self, key: PlanKey) -> LayerPlan:
        decodes, prefills = [], []
        for request, seq_len in enumerate(self.seq_lens):
            query_len = self.starts[request + 1] - self.starts[request]
            if query_len == 0 or seq_len == 0:
                continue
            if query_len == 1:
                decodes.append((request, key.first_key(seq_len - 1)))
            else:
                prefills.append(self._prefill(key, request))
        buckets = tuple(self._bucket(key, members) for members in self._group(decodes))
        return LayerPlan(buckets=buckets, prefills=tuple(prefills))

    def _group(self, decodes: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        """Buckets of (request, first key), longest first, so that little of each rectangle is padding."""
        by_width = sorted(decodes, key=lambda member: member[1] - self.seq_lens[member[0]])
        groups: list[list[tuple[int, int]]] = []
        width = 0
        for request, first_key in by_width:
            num_keys = self.seq_lens[request] - first_key
            fits = num_keys >= min(MIN_BUCKET_FILL * width, width - MAX_PADDING_TOKENS)
            if groups and fits and (len(groups[-1]) + 1) * width <= self.bucket_tokens:
                groups[-1].append((request, first_key))
            else:
                groups.append([(request, first_key)])
                width = num_keys
        return groups

    def _bucket(self, key: PlanKey, members: list[tuple[int, int]]) -> DecodeBucket:
        device = self.common.block_table.device
        requests = torch.tensor([request for request, _ in members], device=device)
        first_keys = torch.tensor([first for _, first in members], device=device)[:, None]
        last_keys = torch.tensor([self.seq_lens[request] - 1 for request, _ in members], device=device)[:, None]
        width = self.seq_lens[members[0][0]] - members[0][1]
        positions = first_keys + torch.arange(width, device=device)
        is_padding = positions > last_keys
        k_rows, v_rows = self._cache_rows(key, requests, torch.minimum(positions, last_keys))
        return DecodeBucket(
            query_rows=torch.tensor([self.starts[request] for request, _ in members], device=device),
            width=width,
            k_rows=k_rows,
            v_rows=v_rows,
            bias=_bias(is_padding, key.dtype)[:, None, None, :] if any(self.seq_lens[r] - f != width for r, f in members) else None,
        )

    def _prefill(self, key: PlanKey, request: int) -> PrefillRows:
        start, end, seq_len = self.starts[request], self.starts[request + 1], self.seq_lens[request]
        device = self.common.block_table.device
        first_position = seq_len - (end - start)
        first_key = key.first_key(first_position)
        positions = torch.arange(first_key, seq_len, device=device)
        k_rows, v_rows = self._cache_rows(key, torch.tensor([request], device=device), positions[None, :])
        if first_position == 0 and not key.explicit and key.first_key(seq_len - 1) == 0:
            tiles: tuple[QueryTile, ...] = (QueryTile(queries=slice(start, end), keys=slice(0, seq_len), bias=None),)
        else:
            firsts = range(first_position, seq_len, self.query_tile)
            tiles = tuple(
                self._tile(
                    key,
                    first,
                    min(first + self.query_tile, seq_len),
                    row_shift=start - first_position,
                    first_gathered=first_key,
                    device=device,
                )
                for first in firsts
            )
        return PrefillRows(num_keys=seq_len - first_key, k_rows=k_rows, v_rows=v_rows, tiles=tiles)

    def _tile(self, key: PlanKey, first: int, end: int, *, row_shift: int, first_gathered: int, device: torch.device) -> QueryTile:
        """Query positions first .. end - 1, which see nothing before the first one's first key nor after the last one."""
        first_key = key.first_key(first)
        queries = torch.arange(first, end, device=device)[:, None]
        keys = torch.arange(first_key, end, device=device)[None, :]
        hidden = keys > queries
        if key.sliding_window is not None:
            hidden |= keys <= queries - key.sliding_window
        if key.chunk_len is not None:
            hidden |= keys // key.chunk_len != queries // key.chunk_len
        return QueryTile(
            queries=slice(first + row_shift, end + row_shift),
            keys=slice(first_key - first_gathered, end - first_gathered),
            bias=_bias(hidden, key.dtype),
        )

    def _cache_rows(self, key: PlanKey, requests: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the cache memory for K and V of `positions` [num_requests, num_keys]; no other block is looked up."""
        blocks = self.common.block_table.index_select(0, requests).gather(1, positions // self.block_size).long()
        offsets = positions % self.block_size
        if self.kv_layout == HND:
            heads = torch.arange(key.num_kv_heads, device=positions.device)[None, :, None]
            k_rows = (blocks[:, None, :] * 2 * key.num_kv_heads + heads) * self.block_size + offsets[:, None, :]
            v_shift = key.num_kv_heads * self.block_size
        else:
            k_rows = blocks * 2 * self.block_size + offsets
            v_shift = self.block_size
        k_rows = k_rows.flatten()
        return k_rows, k_rows + v_shift


def _bias(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))
