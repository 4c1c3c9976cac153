"""From the rows' `SamplingParams` to the sampler's tensors: columns that change by difference, like the batch they belong to."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from slotwise.interfaces.logits_processor import BatchUpdate
from slotwise.interfaces.sampler import GREEDY_EPS, SamplingMetadata
from slotwise.sampling_params import SamplingParams

NO_LOGPROBS = -2


class SamplingColumns:
    """One number per row and parameter."""

    def __init__(self, *, max_num_rows: int, vocab_size: int, device: str) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._temperature: npt.NDArray[np.float32] = np.zeros(max_num_rows, dtype=np.float32)
        self._top_k: npt.NDArray[np.int32] = np.full(max_num_rows, vocab_size, dtype=np.int32)
        self._top_p: npt.NDArray[np.float32] = np.ones(max_num_rows, dtype=np.float32)
        self._min_p: npt.NDArray[np.float32] = np.zeros(max_num_rows, dtype=np.float32)
        self._num_logprobs: npt.NDArray[np.int64] = np.full(max_num_rows, NO_LOGPROBS)
        self._seeds: dict[int, int] = {}
        self._columns: tuple[npt.NDArray[Any], ...] = (self._temperature, self._top_k, self._top_p, self._min_p, self._num_logprobs)

    def update(self, update: BatchUpdate) -> SamplingMetadata:
        """Follow the batch; only rows that came or moved are touched. Returns the metadata of the rows as they are now."""
        for row in update.removed:
            self._seeds.pop(row, None)
        for row, request in update.added:
            self._set(row, request.sampling_params)
        for move in update.moved:
            source, target = self._seeds.pop(move.source, None), self._seeds.pop(move.target, None)
            for column in self._columns:
                column[move.source], column[move.target] = column[move.target], column[move.source]
            if source is not None:
                self._seeds[move.target] = source
            if move.is_swap and target is not None:
                self._seeds[move.source] = target
        return self._metadata(update.num_rows)

    def _set(self, row: int, params: SamplingParams) -> None:
        self._temperature[row] = params.temperature
        self._top_k[row] = min(params.top_k, self._vocab_size) if params.top_k > 0 else self._vocab_size
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        self._num_logprobs[row] = NO_LOGPROBS if params.logprobs is None else params.logprobs
        self._seeds.pop(row, None)
        if params.seed is not None and params.temperature >= GREEDY_EPS:
            self._seeds[row] = params.seed

    def _metadata(self, num_rows: int) -> SamplingMetadata:
        is_greedy = self._temperature[:num_rows] < GREEDY_EPS
        all_greedy = bool(is_greedy.all())
        logprobs = self._num_logprobs[:num_rows]
        return SamplingMetadata(
            num_rows=num_rows,
            all_greedy=all_greedy,
            all_random=not is_greedy.any(),
            temperature=None if all_greedy else self._tensor(self._temperature, num_rows),
            top_k=None if all_greedy else self._unless(self._top_k, self._vocab_size, num_rows),
            top_p=None if all_greedy else self._unless(self._top_p, 1.0, num_rows),
            min_p=None if all_greedy else self._unless(self._min_p, 0.0, num_rows),
            seeds=dict(self._seeds),
            num_logprobs=-1 if (logprobs == -1).any() else None if not num_rows or logprobs.max() < 0 else int(logprobs.max()),
        )

    def _unless(self, column: npt.NDArray[Any], off: float, num_rows: int) -> torch.Tensor | None:
        return None if (column[:num_rows] == off).all() else self._tensor(column, num_rows)

    def _tensor(self, column: npt.NDArray[Any], num_rows: int) -> torch.Tensor:
        return torch.from_numpy(column[:num_rows].copy()).to(self._device)
