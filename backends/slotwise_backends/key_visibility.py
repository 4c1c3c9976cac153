"""Which keys the query rows of one request see under one layer's rule: as a range, and as a mask within it.

A key is known by its position in the sequence, or by its index among the positions this rank holds; without context parallelism the two
are the same. Shared by the backends that gather keys. What this file does not know: where keys lie in memory, how scores are computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from slotwise.interfaces.attention import CROSS, ENCODER, ENCODER_ONLY, AttentionLayer, CommonAttentionMetadata


class PlanKey(NamedTuple):
    """What a plan depends on besides the batch. Layers that agree in it share one."""

    sliding_window: int | None
    chunk_len: int | None
    causal: bool
    attention_type: str
    num_kv_heads: int
    is_latent: bool
    dtype: torch.dtype
    """Of the masks."""
    explicit: bool
    """Scores are computed openly (soft cap, sinks, ALiBi, LSE): every request is tiled, so that scores stay small."""
    wants_distance: bool
    """ALiBi."""
    cascades: bool
    """Decode rows read a common prefix once for all of them."""

    @classmethod
    def of(
        cls, layer: AttentionLayer, dtype: torch.dtype, *, explicit: bool, wants_distance: bool = False, cascades: bool = False
    ) -> PlanKey:
        return cls(
            layer.sliding_window,
            layer.chunk_len,
            layer.causal,
            layer.attention_type,
            layer.num_kv_heads,
            layer.latent_value_dim is not None,
            dtype,
            explicit,
            wants_distance,
            cascades,
        )

    @property
    def is_cross(self) -> bool:
        """Keys belong to another sequence, and all are seen."""
        return self.attention_type == CROSS

    @property
    def is_encoder(self) -> bool:
        """Keys are this step's tokens."""
        return self.attention_type in (ENCODER, ENCODER_ONLY)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowVisibility:
    """The rule for the query rows of one request."""

    key: PlanKey
    first_position: int
    """Of the request's first query row."""
    seq_len: int
    key_len: int
    """Key positions that exist: `seq_len`, or the encoder's."""
    causal: bool
    mask: torch.Tensor | None
    """[query_len, seq_len] bool, True = visible; replaces the causal rule."""
    num_ranks: int
    rank: int

    @property
    def may_be_blind(self) -> bool:
        """Some query row may see no key though the request has some."""
        return self.mask is not None or self.num_ranks > 1

    def first_key(self, position: int) -> int:
        """First key position that `position` may see."""
        first = 0
        if self.key.is_cross:
            return first
        if self.key.sliding_window is not None:
            first = max(first, position - self.key.sliding_window + 1)
        if self.key.chunk_len is not None:
            first = max(first, position // self.key.chunk_len * self.key.chunk_len)
        return first

    def end_key(self, position: int) -> int:
        """One past the last key position that `position` may see."""
        if self.key.is_cross:
            return self.key_len
        if self.causal and self.mask is None:
            return position + 1
        end = self.seq_len
        if self.key.sliding_window is not None:
            end = min(end, position + self.key.sliding_window)
        if self.key.chunk_len is not None:
            end = min(end, (position // self.key.chunk_len + 1) * self.key.chunk_len)
        return end

    def num_held(self, position: int) -> int:
        """How many of the positions before `position` this rank holds: the index of the first held one not before it."""
        return max(0, -((self.rank - position) // self.num_ranks))

    def key_positions(self, first: int, end: int, device: torch.device) -> torch.Tensor:
        """[end - first] int64, positions of the keys with these indices."""
        return torch.arange(first, end, device=device) * self.num_ranks + self.rank

    def hidden(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """[num_queries, num_keys] bool: the query at this position may not see the key at that one."""
        rows, columns = queries[:, None], keys[None, :]
        hidden = torch.zeros(queries.numel(), keys.numel(), dtype=torch.bool, device=queries.device)
        if self.key.is_cross:
            return hidden
        if self.mask is not None:
            hidden |= ~self.mask[rows - self.first_position, columns]
        elif self.causal:
            hidden |= columns > rows
        if self.key.sliding_window is not None:
            hidden |= (rows - columns).abs() >= self.key.sliding_window
        if self.key.chunk_len is not None:
            hidden |= rows // self.key.chunk_len != columns // self.key.chunk_len
        return hidden

    def seen_only(self, indices: torch.Tensor) -> torch.Tensor:
        """Key indices, those that the mask hides from every row replaced by one that is seen, if any is: hidden keys may hold anything."""
        queries = torch.arange(self.first_position, self.seq_len, device=indices.device)
        is_seen = ~self.hidden(queries, indices * self.num_ranks + self.rank).all(dim=0)
        substitute = indices[is_seen.int().argmax()] if bool(is_seen.any()) else indices[-1]
        return torch.where(is_seen, indices, substitute)


def row_visibilities(
    key: PlanKey, common: CommonAttentionMetadata, starts: list[int], seq_lens: list[int]
) -> list[tuple[int, RowVisibility]]:
    """Of the requests that have query rows. starts: `query_start_loc` as ints."""
    found, mask_start = [], 0
    key_lens = common.encoder_seq_lens.tolist() if key.is_cross and common.encoder_seq_lens is not None else seq_lens
    causal = [common.causal] * len(seq_lens) if isinstance(common.causal, bool) else common.causal.tolist()
    masks = None if key.is_cross or common.custom_mask is None else common.custom_mask.flatten()
    for request, seq_len in enumerate(seq_lens):
        query_len = starts[request + 1] - starts[request]
        mask_end = mask_start + query_len * seq_len
        if query_len:
            visibility = RowVisibility(
                key=key,
                first_position=seq_len - query_len,
                seq_len=seq_len,
                key_len=key_lens[request],
                causal=causal[request] and key.causal,
                mask=None if masks is None else masks[mask_start:mask_end].view(query_len, seq_len),
                num_ranks=common.context_parallel_size,
                rank=common.context_parallel_rank,
            )
            found.append((request, visibility))
        mask_start = mask_end
    return found
