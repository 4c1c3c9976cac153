"""What `torch_sdpa` prepares once a step, as records: which keys each query row reads, and the masks.

A step has rows of two shapes. Requests with one query token are put into buckets of similar length and read as one padded
rectangle; requests with more, or with a mask of their own, are read one by one, in tiles of query rows.

What this file does not know: how a plan is made, tensors of a layer, how scores are computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from slotwise.interfaces.attention import CommonAttentionMetadata
from slotwise_backends.key_memory import KeyRows
from slotwise_backends.key_visibility import PlanKey


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeBucket:
    """Requests with one query token, read as a rectangle [num_rows, width] of keys."""

    query_rows: torch.Tensor
    """[num_rows] int64, rows of the flat query."""
    width: int
    rows: KeyRows
    """Padding repeats the row's last key, so that nothing unwritten is ever read."""
    bias: torch.Tensor | None
    """[num_rows, 1, 1, width], 0 or -inf; None if nothing is padded."""
    distance: torch.Tensor | None
    """[num_rows, 1, 1, width], |key position - query position|, where wanted."""
    members: slice
    """Of the rows of the common prefix, if there is one: these rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryTile:
    """Some query rows of one request and the keys they see, as slices."""

    queries: slice
    """Of the flat query."""
    keys: slice
    """Of the request's gathered keys."""
    bias: torch.Tensor | None
    """[num_queries, num_keys], 0 or -inf; None = nothing hidden but what `is_causal` hides."""
    is_causal: bool = False
    """Plain causal over a square."""
    distance: torch.Tensor | None = None
    """[num_queries, num_keys], where wanted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillRows:
    """One request read by itself."""

    num_keys: int
    rows: KeyRows
    """Keys that no query row sees are replaced by one that some row does, so that nothing unwritten is ever read."""
    tiles: tuple[QueryTile, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonPrefix:
    """Keys that all rows of all buckets see; the buckets then hold only what follows."""

    query_rows: torch.Tensor
    """[num_rows] int64, rows of the flat query, bucket after bucket."""
    rows: KeyRows


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPlan:
    """The work of one layer."""

    prefix: CommonPrefix | None
    buckets: tuple[DecodeBucket, ...]
    prefills: tuple[PrefillRows, ...]
    blind_rows: torch.Tensor | None
    """Rows of the flat query that see no key; None if all see some. Computed or not, they are overwritten at the end."""


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
    common_prefix_len: int = 0
    """Tokens that all rows begin with, in the same blocks."""
    plans: dict[PlanKey, LayerPlan] = field(default_factory=dict)

    @property
    def num_query_rows(self) -> int:
        return self.starts[-1]
