"""One step's metadata: the batch's tensors, and which query rows each tile takes. Everything is computed on the device.

What this file does not know: layers' heads, kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from slotwise.interfaces.attention import CommonAttentionMetadata


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiles:
    """Which row and query token each tile begins at."""

    row: torch.Tensor
    """[num_tiles] int32; num_reqs for a tile that has nothing to do."""
    first: torch.Tensor
    """[num_tiles] int32, query token within the row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMetadata:
    """What the layers of one step share."""

    num_reqs: int
    num_tokens: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    num_held: torch.Tensor
    """[num_reqs] int32: keys of each row that this rank's cache holds."""
    encoder_seq_lens: torch.Tensor | None
    block_table: torch.Tensor
    causal: bool
    """False: not, or not for every row."""
    causal_of_row: torch.Tensor | None
    """[num_reqs] int8."""
    custom_mask: torch.Tensor | None
    """Flat uint8."""
    mask_start: torch.Tensor | None
    """[num_reqs] int64, where each row's mask begins."""
    num_ranks: int
    rank: int
    common_prefix_len: int
    max_seq_len: int
    """Upper bound, also of `encoder_seq_lens`."""
    is_decode: bool
    """No row has more than one query token."""
    is_captured: bool
    are_tiles_aligned: bool
    """Tiles begin at multiples of their size, so that a position has one lane however its sequence is cut into steps."""
    tiles: dict[int, Tiles]
    """Query tokens per tile -> tiles."""

    def tiles_of(self, query_tokens: int) -> Tiles:
        """Made at their first use, but beforehand where a graph is captured."""
        if query_tokens not in self.tiles:
            num_computed = self.seq_lens - (self.query_start_loc[1:] - self.query_start_loc[:-1])
            shift = num_computed % query_tokens if self.are_tiles_aligned else None
            self.tiles[query_tokens] = make_tiles(self.query_start_loc, self.num_tokens, query_tokens, shift)
        return self.tiles[query_tokens]


def make_step(common: CommonAttentionMetadata, *, common_prefix_len: int, longest_encoder: int, are_tiles_aligned: bool) -> StepMetadata:
    """From the batch as the engine gives it. `longest_encoder`: bound of the encoder's lengths, where there are any."""
    num_reqs = common.num_reqs
    query_start_loc, seq_lens = common.query_start_loc[: num_reqs + 1], common.seq_lens[:num_reqs]
    causal_of_row = None if isinstance(common.causal, bool) else common.causal.to(torch.int8)
    mask_start = None
    if common.custom_mask is not None:
        areas = (query_start_loc[1:] - query_start_loc[:-1]).long() * seq_lens.long()
        mask_start = torch.cumsum(areas, 0) - areas
    return StepMetadata(
        num_reqs=num_reqs,
        num_tokens=common.num_tokens,
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        num_held=seq_lens if common.context_parallel_seq_lens is None else common.context_parallel_seq_lens,
        encoder_seq_lens=common.encoder_seq_lens,
        block_table=common.block_table,
        causal=common.causal is True,
        causal_of_row=causal_of_row,
        custom_mask=None if common.custom_mask is None else common.custom_mask.view(torch.uint8),
        mask_start=mask_start,
        num_ranks=common.context_parallel_size,
        rank=common.context_parallel_rank,
        common_prefix_len=common_prefix_len,
        max_seq_len=max(common.max_seq_len, longest_encoder if common.encoder_seq_lens is not None else 0),
        is_decode=common.max_query_len <= 1,
        is_captured=False,
        are_tiles_aligned=are_tiles_aligned,
        tiles={},
    )


def make_tiles(query_start_loc: torch.Tensor, num_tokens: int, query_tokens: int, shift: torch.Tensor | None = None) -> Tiles:
    """As many tiles as any batch of that many rows and tokens may need; rows take theirs in order, the last ones may have nothing.

    shift: [num_reqs], query tokens by which a row's first tile begins before the row; None = 0.
    """
    num_reqs = query_start_loc.numel() - 1
    query_lens = query_start_loc[1:] - query_start_loc[:-1]
    reach = query_lens if shift is None else torch.where(query_lens > 0, query_lens + shift, 0)
    needed = (reach + query_tokens - 1) // query_tokens
    ends = torch.cumsum(needed, 0)
    most_per_token, most_per_row = (1, 1) if shift is None else (2, 2)
    num_tiles = min(most_per_token * num_tokens, num_tokens // query_tokens + most_per_row * num_reqs)
    tile = torch.arange(num_tiles, device=query_start_loc.device)
    row = torch.searchsorted(ends, tile, right=True)
    known = row.clamp(max=num_reqs - 1)
    first = (tile - (ends - needed)[known]) * query_tokens
    if shift is not None:
        first = first - shift[known]
    return Tiles(row=row.to(torch.int32), first=first.to(torch.int32))


class CapturedSteps:
    """Steps whose tensors keep their places, by rows, tokens and what cannot be copied: what a graph captured is refreshed by copying
    into it."""

    def __init__(self, max_blocks: int, max_model_len: int) -> None:
        self.max_blocks = max_blocks
        self.max_model_len = max_model_len
        self._kept: dict[tuple[int | bool, ...], StepMetadata] = {}

    def refresh(self, step: StepMetadata, query_tokens: Iterable[int]) -> StepMetadata:
        """The kept step, holding what `step` holds."""
        key = (step.num_reqs, step.num_tokens, *_launch_facts(step))
        for size in query_tokens:
            step.tiles_of(size)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = self._empty_like(step)
        for name in ("query_start_loc", "seq_lens", "num_held", "encoder_seq_lens", "causal_of_row", "mask_start"):
            _copy(getattr(kept, name), getattr(step, name))
        width = min(kept.block_table.shape[1], step.block_table.shape[1])
        kept.block_table[:, :width].copy_(step.block_table[: step.num_reqs, :width])
        if kept.custom_mask is not None and step.custom_mask is not None:
            kept.custom_mask[: step.custom_mask.numel()].copy_(step.custom_mask)
        for size, tiles in step.tiles.items():
            _copy(kept.tiles[size].row, tiles.row)
            _copy(kept.tiles[size].first, tiles.first)
        return kept

    def _empty_like(self, step: StepMetadata) -> StepMetadata:
        def empty(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else torch.empty_like(tensor)

        table = torch.zeros(step.num_reqs, self.max_blocks, dtype=torch.int32, device=step.block_table.device)
        mask = step.custom_mask
        return replace(
            step,
            query_start_loc=torch.empty_like(step.query_start_loc),
            seq_lens=torch.empty_like(step.seq_lens),
            num_held=torch.empty_like(step.num_held),
            encoder_seq_lens=empty(step.encoder_seq_lens),
            causal_of_row=empty(step.causal_of_row),
            mask_start=empty(step.mask_start),
            block_table=table,
            custom_mask=None if mask is None else mask.new_zeros(step.num_tokens * self.max_model_len),
            max_seq_len=self.max_model_len,
            is_decode=step.is_decode and step.num_tokens <= step.num_reqs,
            is_captured=True,
            tiles={size: Tiles(row=torch.empty_like(tiles.row), first=torch.empty_like(tiles.first)) for size, tiles in step.tiles.items()},
        )


def _launch_facts(step: StepMetadata) -> tuple[int | bool, ...]:
    """What launches read of a step beside its tensors' contents: steps that differ in it need kernels of their own."""
    optional = (step.causal_of_row, step.custom_mask, step.encoder_seq_lens)
    return (step.causal, step.num_ranks, step.rank, *(tensor is not None for tensor in optional))


def _copy(into: torch.Tensor | None, source: torch.Tensor | None) -> None:
    if into is not None and source is not None:
        into.copy_(source)
