"""Rows and their pages in FlashInfer's form: running sums, page numbers one row after the other, tokens in the last page.

    block_table [[5, 7, 0], [2, 0, 0]], 20 and 9 keys in pages of 16  ->  indptr [0, 2, 3], indices [5, 7, 2], last_page_len [4, 9]

Its kernels read every key of a page list, and multiply the values of those outside a window by 0, which NaN survives. So what left a
window is not listed: where a row has such keys, a page is one key, numbered as if the cache were one run of slots.

Lengths must be exact, so they are read from the device once a step: `seq_lens_cpu` is only an upper bound. Rows without queries or keys are
left out; their output is 0. What this file does not know: FlashInfer's objects.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRows:
    """Rows that one plan serves, by their tokens."""

    query_indptr: torch.Tensor
    """[num_rows + 1] int32, CPU."""
    tokens: torch.Tensor | None
    """Indices of the rows' tokens on the device; None = all tokens of the step, in order."""

    @property
    def num_rows(self) -> int:
        return self.query_indptr.numel() - 1

    @property
    def is_decode(self) -> bool:
        """Every row has one query token."""
        return int(self.query_indptr[-1]) == self.num_rows


@dataclass(frozen=True, kw_only=True, slots=True)
class PagedRows(TokenRows):
    """Rows and the pages of their keys."""

    page_indptr: torch.Tensor
    """[num_rows + 1] int32, CPU."""
    page_indices: torch.Tensor
    """[num_pages] int32, device."""
    last_page_len: torch.Tensor
    """[num_rows] int32, CPU, 1 .. page_size."""
    page_size: int
    is_by_key: bool = False
    """A page is one key, see `windowed_rows`."""
    empty: torch.Tensor | None = None
    """[num_rows] bool, device: rows listed with a key that is not theirs, since they have none."""


def token_rows(query_lens: torch.Tensor, device: torch.device, chosen: torch.Tensor | None = None) -> TokenRows:
    """Rows without a cache. query_lens: [num_reqs] CPU. chosen: [num_reqs] bool, the rows to take."""
    kept = _kept(query_lens, query_lens, chosen)
    return TokenRows(query_indptr=_running_sum(query_lens[kept]), tokens=_tokens(query_lens, kept, device))


def paged_rows(
    query_lens: torch.Tensor,
    key_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    page_size: int,
    chosen: torch.Tensor | None = None,
    first_page: int = 0,
) -> PagedRows:
    """query_lens, key_lens: [num_reqs] CPU. chosen: as in `token_rows`. first_page: pages of each row left out, with their keys."""
    key_lens = key_lens - first_page * page_size
    kept = _kept(query_lens, key_lens, chosen)
    rows, lens = kept.nonzero().squeeze(1), key_lens[kept]
    num_pages = (lens + page_size - 1) // page_size
    row_of_page, place = _listed(rows, num_pages, torch.full_like(lens, first_page), block_table.device)
    return PagedRows(
        query_indptr=_running_sum(query_lens[rows]),
        page_indptr=_running_sum(num_pages),
        page_indices=block_table[row_of_page, place],
        last_page_len=((lens - 1) % page_size + 1).to(torch.int32),
        page_size=page_size,
        tokens=_tokens(query_lens, kept, block_table.device),
    )


def windowed_rows(
    query_lens: torch.Tensor,
    key_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    block_size: int,
    slots_per_block: int,
    window_left: int,
    chosen: torch.Tensor | None = None,
) -> PagedRows:
    """From the first key that a row's first query sees, in pages of one key: number block * slots_per_block + offset.

    window_left: keys seen left of the query's own.
    """
    first_keys = first_seen(query_lens, key_lens, window_left)
    kept = _kept(query_lens, key_lens, chosen)
    rows, lens = kept.nonzero().squeeze(1), (key_lens - first_keys)[kept]
    row_of_key, place = _listed(rows, lens, first_keys[kept], block_table.device)
    return PagedRows(
        query_indptr=_running_sum(query_lens[rows]),
        page_indptr=_running_sum(lens),
        page_indices=(block_table[row_of_key, place // block_size] * slots_per_block + place % block_size).to(torch.int32),
        last_page_len=torch.ones(lens.numel(), dtype=torch.int32),
        page_size=1,
        is_by_key=True,
        tokens=_tokens(query_lens, kept, block_table.device),
    )


def first_seen(query_lens: torch.Tensor, key_lens: torch.Tensor, window_left: int) -> torch.Tensor:
    """[num_reqs], the first key that any query of a row sees."""
    return (key_lens - query_lens - window_left).clamp(min=0)


def shared_prefix(num_tokens: int, block_table: torch.Tensor, *, num_pages: int, page_size: int) -> PagedRows:
    """All tokens of a step as one row over the pages that every row begins with."""
    return PagedRows(
        query_indptr=torch.tensor([0, num_tokens], dtype=torch.int32),
        page_indptr=torch.tensor([0, num_pages], dtype=torch.int32),
        page_indices=block_table[0, :num_pages].contiguous(),
        last_page_len=torch.tensor([page_size], dtype=torch.int32),
        page_size=page_size,
        tokens=None,
    )


def _kept(query_lens: torch.Tensor, key_lens: torch.Tensor, chosen: torch.Tensor | None) -> torch.Tensor:
    kept = (query_lens > 0) & (key_lens > 0)
    return kept if chosen is None else kept & chosen


def _tokens(query_lens: torch.Tensor, kept: torch.Tensor, device: torch.device) -> torch.Tensor | None:
    if bool((kept | (query_lens == 0)).all()):
        return None
    return torch.repeat_interleave(kept, query_lens.long()).nonzero().squeeze(1).to(device)


def _listed(rows: torch.Tensor, counts: torch.Tensor, firsts: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and place of each entry, row after row, places counting on from `firsts`; made on the device, as there may be many."""
    total, starts = int(counts.sum()), _running_sum(counts)[:-1]
    packed = torch.stack([rows, counts.long(), firsts.long() - starts.long()]).to(device)
    row_of_entry, shift = (torch.repeat_interleave(each, packed[1], output_size=total) for each in (packed[0], packed[2]))
    return row_of_entry, torch.arange(total, device=device) + shift


def _running_sum(lens: torch.Tensor) -> torch.Tensor:
    sums = torch.zeros(lens.numel() + 1, dtype=torch.int32)
    torch.cumsum(lens, 0, out=sums[1:])
    return sums
