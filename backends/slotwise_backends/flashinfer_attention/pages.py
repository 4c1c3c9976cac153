"""Rows and their pages in FlashInfer's form: running sums, page numbers one row after the other, tokens in the last page.

    block_table [[5, 7, 0], [2, 0, 0]], 20 and 9 keys in pages of 16  ->  indptr [0, 2, 3], indices [5, 7, 2], last_page_len [4, 9]

Lengths must be exact, so they are read from the device once a step: `seq_lens_cpu` is only an upper bound. Rows without queries or keys are
left out; their output is 0. What this file does not know: FlashInfer's objects.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class PagedRows:
    """Rows that one plan serves."""

    query_indptr: torch.Tensor
    """[num_rows + 1] int32, CPU."""
    page_indptr: torch.Tensor
    """[num_rows + 1] int32, CPU."""
    page_indices: torch.Tensor
    """[num_pages] int32, device."""
    last_page_len: torch.Tensor
    """[num_rows] int32, CPU, 1 .. page_size."""
    key_lens: torch.Tensor
    """[num_rows] int32, CPU."""
    tokens: torch.Tensor | None
    """Indices of the rows' tokens on the device; None = all tokens of the step, in order."""

    @property
    def num_rows(self) -> int:
        return self.key_lens.numel()

    @property
    def is_decode(self) -> bool:
        """Every row has one query token."""
        return int(self.query_indptr[-1]) == self.num_rows


def paged_rows(
    query_lens: torch.Tensor,
    key_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    page_size: int,
    chosen: torch.Tensor | None = None,
    first_page: int = 0,
) -> PagedRows:
    """query_lens, key_lens: [num_reqs] CPU. chosen: [num_reqs] bool, the rows to take. first_page: pages of each row left out, with
    their keys."""
    key_lens = key_lens - first_page * page_size
    kept = (query_lens > 0) & (key_lens > 0)
    if chosen is not None:
        kept &= chosen
    rows = kept.nonzero().squeeze(1)
    lens = key_lens[rows]
    num_pages = (lens + page_size - 1) // page_size
    page_indptr = _running_sum(num_pages)
    row_of_page = torch.repeat_interleave(rows, num_pages.long())
    place = torch.arange(row_of_page.numel()) - torch.repeat_interleave(page_indptr[:-1].long(), num_pages.long()) + first_page
    device = block_table.device
    is_all = bool((kept | (query_lens == 0)).all())
    tokens = None if is_all else torch.repeat_interleave(kept, query_lens.long()).nonzero().squeeze(1).to(device)
    return PagedRows(
        query_indptr=_running_sum(query_lens[rows]),
        page_indptr=page_indptr,
        page_indices=block_table[row_of_page.to(device), place.to(device)],
        last_page_len=((lens - 1) % page_size + 1).to(torch.int32),
        key_lens=lens.to(torch.int32),
        tokens=tokens,
    )


def shared_prefix(num_tokens: int, block_table: torch.Tensor, *, num_pages: int, page_size: int) -> PagedRows:
    """All tokens of a step as one row over the pages that every row begins with."""
    return PagedRows(
        query_indptr=torch.tensor([0, num_tokens], dtype=torch.int32),
        page_indptr=torch.tensor([0, num_pages], dtype=torch.int32),
        page_indices=block_table[0, :num_pages].contiguous(),
        last_page_len=torch.tensor([page_size], dtype=torch.int32),
        key_lens=torch.tensor([num_pages * page_size], dtype=torch.int32),
        tokens=None,
    )


def _running_sum(lens: torch.Tensor) -> torch.Tensor:
    sums = torch.zeros(lens.numel() + 1, dtype=torch.int32)
    torch.cumsum(lens, 0, out=sums[1:])
    return sums
