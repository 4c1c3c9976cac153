"""What `flex` prepares once a step: packs of query rows and gathered keys, and the mask of each as FlexAttention wants it.

A pack is a sequence of its own: rows and keys of several requests, one after the other, where a row sees keys of its request alone.

    tile_of_row     0 1 1 1 2          tile_of_key     0 0 0 0 1 1 1 2 2
    position_of_row 3 0 1 2 1          position_of_key 0 1 2 3 0 1 2 0 1

What this file does not know: tensors of a layer, how scores are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from slotwise.interfaces.attention import HND, CommonAttentionMetadata
from slotwise_backends.key_memory import KeyRows, key_rows
from slotwise_backends.key_visibility import PlanKey, RowVisibility, row_visibilities

MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
PADDING_ROW, PADDING_KEY = -1, -2
"""Labels of what pads a shape: no row sees a padding key, no padding row sees a key."""
MIN_PADDED = 128
"""Padded lengths are powers of two from here on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTile:
    """Query rows of one request, and the indices of the keys that some of them may see."""

    request: int
    visibility: RowVisibility
    query_rows: torch.Tensor
    """Rows of the flat query, ascending, int64."""
    positions: torch.Tensor
    keys: torch.Tensor
    """Key indices, [num_keys] int64."""
    gathered: torch.Tensor
    """The same, but of keys that nobody sees, which may hold anything, one that is seen."""

    @property
    def key_positions(self) -> torch.Tensor:
        """[num_keys] int64."""
        return self.keys * self.visibility.num_ranks + self.visibility.rank


@dataclass(frozen=True, kw_only=True, slots=True)
class Pack:
    """What one call of FlexAttention computes."""

    query_rows: torch.Tensor
    """[num_rows] int64, rows of the flat query; the first `num_real_rows` are computed, the others pad."""
    num_real_rows: int
    keys: KeyRows
    position_of_row: torch.Tensor
    """[num_rows] int64."""
    position_of_key: torch.Tensor
    """[num_keys] int64."""
    block_mask: BlockMask


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPlan:
    """The work of one layer."""

    packs: tuple[Pack, ...]
    blind_rows: torch.Tensor | None
    """Rows of the flat query that see no key; None if all see some."""


@dataclass(kw_only=True, slots=True)
class StepMetadata:
    """The batch, and the plans made for it so far."""

    common: CommonAttentionMetadata
    kv_layout: str
    block_size: int
    max_scores: int
    starts: list[int]
    """`query_start_loc` as ints."""
    seq_lens: list[int]
    plans: dict[tuple[PlanKey, bool], LayerPlan] = field(default_factory=dict)

    def plan(self, key: PlanKey, *, is_compiled: bool) -> LayerPlan:
        """The plan for the layers of `key`, made at its first use in the step. Compiled: one pack, of a padded shape."""
        plan = self.plans.get((key, is_compiled))
        if plan is None:
            plan = self.plans[key, is_compiled] = _Planner(self, key, is_compiled=is_compiled).plan()
        return plan


class _Planner:
    def __init__(self, step: StepMetadata, key: PlanKey, *, is_compiled: bool) -> None:
        self.step, self.key, self.is_compiled = step, key, is_compiled
        self.device = step.common.block_table.device
        self.blind: list[torch.Tensor] = []

    def plan(self) -> LayerPlan:
        tiles = [
            tile
            for request, visibility in row_visibilities(self.key, self.step.common, self.step.starts, self.step.seq_lens)
            for tile in self._tiles(request, visibility)
        ]
        packs = tuple(self._pack(group) for group in self._group(tiles))
        return LayerPlan(packs=packs, blind_rows=torch.cat(self.blind) if self.blind else None)

    def _tiles(self, request: int, visibility: RowVisibility) -> list[RowTile]:
        """The request's rows, in parts whose scores are no more than allowed; none for rows that see no key."""
        first = visibility.num_held(visibility.first_key(visibility.first_position))
        num_keys = visibility.num_held(visibility.key_len) - first
        query_len = visibility.seq_len - visibility.first_position
        size = query_len if self.is_compiled else max(1, self.step.max_scores // max(num_keys, 1))
        tiles = (self._tile(request, visibility, start, min(start + size, query_len)) for start in range(0, query_len, size))
        return [tile for tile in tiles if tile is not None]

    def _tile(self, request: int, visibility: RowVisibility, start: int, end: int) -> RowTile | None:
        positions = torch.arange(start, end, device=self.device) + visibility.first_position
        query_rows = torch.arange(start, end, device=self.device) + self.step.starts[request]
        first = visibility.num_held(visibility.first_key(visibility.first_position + start))
        last = visibility.num_held(visibility.end_key(visibility.first_position + end - 1))
        keys = torch.arange(first, last, device=self.device)
        if first >= last:
            self.blind.append(query_rows)
            return None
        if visibility.may_be_blind:
            is_blind = visibility.hidden(positions, visibility.key_positions(first, last, self.device)).all(dim=1)
            self.blind.append(query_rows[is_blind])
        return RowTile(
            request=request,
            visibility=visibility,
            query_rows=query_rows,
            positions=positions,
            keys=keys,
            gathered=keys if visibility.mask is None else visibility.seen_only(keys),
        )

    def _group(self, tiles: list[RowTile]) -> list[list[RowTile]]:
        """Tiles that are computed together: all if compiled, which skips what is masked; otherwise few enough that little is wasted."""
        if self.is_compiled:
            return [tiles] if tiles else []
        groups: list[list[RowTile]] = []
        num_rows = num_keys = 0
        for tile in tiles:
            num_rows, num_keys = num_rows + tile.positions.numel(), num_keys + tile.keys.numel()
            if groups and num_rows * num_keys <= self.step.max_scores:
                groups[-1].append(tile)
            else:
                groups.append([tile])
                num_rows, num_keys = tile.positions.numel(), tile.keys.numel()
        return groups

    def _pack(self, tiles: list[RowTile]) -> Pack:
        num_rows, num_keys = sum(tile.positions.numel() for tile in tiles), sum(tile.keys.numel() for tile in tiles)
        rows, columns = (_padded(num_rows), _padded(num_keys)) if self.is_compiled else (num_rows, num_keys)
        position_of_row = _joined([tile.positions for tile in tiles], rows)
        position_of_key = _joined([tile.key_positions for tile in tiles], columns)
        if self.is_compiled:
            rule = visibility_rule(tiles, position_of_row, position_of_key)
            block_mask = create_block_mask(rule, None, None, rows, columns, device=self.device)
        else:
            block_mask = _whole_block(visibility_table(tiles))
        return Pack(
            query_rows=_joined([tile.query_rows for tile in tiles], rows),
            num_real_rows=num_rows,
            keys=self._gathered(tiles, columns),
            position_of_row=position_of_row,
            position_of_key=position_of_key,
            block_mask=block_mask,
        )

    def _gathered(self, tiles: list[RowTile], length: int) -> KeyRows:
        """The tiles' keys as those of one request; padding repeats the last."""
        num_heads = self.key.num_kv_heads if self.step.kv_layout == HND and not self.key.is_encoder else 1
        parts = [self._rows(tile) for tile in tiles]
        k = _joined([part.k.view(num_heads, -1) for part in parts], length)
        v = _joined([part.v.view(num_heads, -1) for part in parts], length)
        return KeyRows(num_requests=1, k=k.flatten(), v=v.flatten())

    def _rows(self, tile: RowTile) -> KeyRows:
        requests = torch.tensor([tile.request], device=self.device)
        layout, block_size = self.step.kv_layout, self.step.block_size
        return key_rows(self.key, self.step.common, requests, tile.gathered[None, :], kv_layout=layout, block_size=block_size)


def visibility_rule(tiles: list[RowTile], position_of_row: torch.Tensor, position_of_key: torch.Tensor) -> MaskMod:
    """Who sees whom, computed for any row and key of the pack; for kernels that never hold the whole mask."""
    num_rows, num_keys, key = position_of_row.numel(), position_of_key.numel(), tiles[0].visibility.key
    tile_of_row = _labelled([tile.positions for tile in tiles], num_rows, PADDING_ROW)
    tile_of_key = _labelled([tile.keys for tile in tiles], num_keys, PADDING_KEY)
    last_seen = _joined([_last_seen(tile) for tile in tiles], num_rows)
    window, chunk_len = (None, None) if key.is_cross else (key.sliding_window, key.chunk_len)
    masks = None if tiles[0].visibility.mask is None else torch.cat([_mask_rows(tile).flatten() for tile in tiles])
    mask_widths = _joined([torch.full_like(tile.positions, tile.visibility.seq_len) for tile in tiles], num_rows)
    mask_starts = mask_widths.cumsum(0) - mask_widths

    def mask_mod(_batch: torch.Tensor, _head: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        is_own = tile_of_row[row] == tile_of_key[column]
        seen = is_own & (position_of_key[column] <= last_seen[row])
        if window is not None:
            seen = seen & ((position_of_row[row] - position_of_key[column]).abs() < window)
        if chunk_len is not None:
            seen = seen & (position_of_row[row] // chunk_len == position_of_key[column] // chunk_len)
        if masks is not None:
            seen = seen & masks[torch.where(is_own, mask_starts[row] + position_of_key[column], 0)]
        return seen

    return mask_mod


def visibility_table(tiles: list[RowTile]) -> torch.Tensor:
    """The same as a table, [num_rows, num_keys] bool: uncompiled, each operation of a rule costs milliseconds."""
    num_rows, num_keys = sum(tile.positions.numel() for tile in tiles), sum(tile.keys.numel() for tile in tiles)
    table = torch.zeros(num_rows, num_keys, dtype=torch.bool, device=tiles[0].keys.device)
    row = column = 0
    for tile in tiles:
        next_row, next_column = row + tile.positions.numel(), column + tile.keys.numel()
        table[row:next_row, column:next_column] = ~tile.visibility.hidden(tile.positions, tile.key_positions)
        row, column = next_row, next_column
    return table


def _whole_block(table: torch.Tensor) -> BlockMask:
    """The mask as FlexAttention takes it, in one block: uncompiled code skips none."""

    def mask_mod(_batch: torch.Tensor, _head: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return table[row, column]

    size = (table.shape[0], table.shape[1])
    num_blocks = torch.ones(1, 1, 1, dtype=torch.int32, device=table.device)
    indices = torch.zeros(1, 1, 1, 1, dtype=torch.int32, device=table.device)
    return BlockMask.from_kv_blocks(num_blocks, indices, BLOCK_SIZE=size, mask_mod=mask_mod, seq_lengths=size)


def _last_seen(tile: RowTile) -> torch.Tensor:
    """[num_rows] int64, the last key position that the causal rule leaves to each row."""
    visibility = tile.visibility
    if visibility.causal and visibility.mask is None and not visibility.key.is_cross:
        return tile.positions
    return torch.full_like(tile.positions, visibility.key_len)


def _mask_rows(tile: RowTile) -> torch.Tensor:
    """[num_rows, seq_len] of the request's mask."""
    assert tile.visibility.mask is not None  # all requests of a step have one, or none
    return tile.visibility.mask[tile.positions - tile.visibility.first_position]


def _joined(parts: list[torch.Tensor], length: int) -> torch.Tensor:
    """One after the other along the last dimension, the last element repeated up to `length`."""
    whole = torch.cat(parts, dim=-1)
    missing = length - whole.shape[-1]
    return torch.cat([whole, whole[..., -1:].expand(*whole.shape[:-1], missing)], dim=-1) if missing else whole


def _labelled(parts: list[torch.Tensor], length: int, padding: int) -> torch.Tensor:
    """[length] int64, for each element of the parts the part's number."""
    labels = [torch.full_like(part, index) for index, part in enumerate(parts)]
    missing = length - sum(part.numel() for part in parts)
    return torch.cat([*labels, torch.full((missing,), padding, device=parts[0].device)])


def _padded(length: int) -> int:
    return max(MIN_PADDED, 1 << (length - 1).bit_length())
