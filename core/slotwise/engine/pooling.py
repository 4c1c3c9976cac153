"""A prompt's hidden states, which come chunk by chunk, become one vector.

What this file does not know: where hidden states come from, which tokens a step computes.
"""

from __future__ import annotations

import torch

from slotwise.pooling_params import Pooling, PoolingParams


class PromptPooler:
    """Of one request. Positions that come again, after a preemption, are left out."""

    def __init__(self, params: PoolingParams) -> None:
        """params: resolved, nothing is None but `dimensions`."""
        self._params = params
        self._num_seen = 0
        self._vector: torch.Tensor | None = None

    def add(self, first_position: int, hidden_states: torch.Tensor) -> None:
        """hidden_states: [num_tokens, hidden_size] of the positions from first_position on."""
        new = hidden_states[max(self._num_seen - first_position, 0) :]
        if not len(new):
            return
        pooling = self._params.pooling
        if pooling is Pooling.MEAN:
            total = new.sum(dim=0, dtype=torch.float64)
            self._vector = total if self._vector is None else self._vector + total
        elif pooling is Pooling.LAST or self._vector is None:
            self._vector = (new[-1] if pooling is Pooling.LAST else new[0]).double()
        self._num_seen = first_position + len(hidden_states)

    def embedding(self) -> list[float] | None:
        """The vector of what was added, float32 values; None if it is not finite."""
        vector = self._vector
        assert vector is not None, "nothing was added"
        if self._params.pooling is Pooling.MEAN:
            vector = vector / self._num_seen
        vector = vector[: self._params.dimensions]
        if self._params.normalize:
            vector = vector / vector.norm().clamp(min=torch.finfo(torch.float32).tiny)
        values: list[float] = vector.float().tolist()
        return values if all(abs(value) < float("inf") for value in values) else None
