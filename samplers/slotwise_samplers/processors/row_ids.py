"""Ids of many rows as one flat index into the logits. What this file does not know: what is done to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


class RowIds:
    """(row, id) pairs, row after row; ids without a logit are left out."""

    __slots__ = ("ids", "rows")

    def __init__(self, pairs: Iterable[tuple[int, Sequence[int]]], vocab_size: int, device: torch.device | str) -> None:
        rows: list[int] = []
        ids: list[int] = []
        for row, of_row in pairs:
            known = [token_id for token_id in of_row if 0 <= token_id < vocab_size]
            ids += known
            rows += [row] * len(known)
        self.rows = torch.tensor(rows, dtype=torch.int64, device=device)
        self.ids = torch.tensor(ids, dtype=torch.int64, device=device)

    def __len__(self) -> int:
        return self.ids.numel()

    def take(self, logits: torch.Tensor) -> torch.Tensor:
        """[len(self)], a copy."""
        return logits[self.rows, self.ids]

    def put(self, logits: torch.Tensor, values: torch.Tensor | float) -> None:
        """values: [len(self)] or one number."""
        logits[self.rows, self.ids] = torch.as_tensor(values, dtype=logits.dtype, device=logits.device)
