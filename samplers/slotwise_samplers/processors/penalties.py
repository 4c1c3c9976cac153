"""`penalties`: repetition, frequency and presence, over the ids that a request has seen.

Only those ids are touched, so a step costs what the histories have of different tokens, whatever the vocabulary; counts follow the output
token by token.
Source: repetition: CTRL (Keskar et al., 2019), section 4.1, over prompt and output; frequency and presence: the OpenAI API's documented
formula, logit - frequency * count - presence * (count > 0), over the output alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from slotwise.interfaces.logits_processor import LogitsRows, RowRequest, RowStatesProcessor
from slotwise_samplers import capabilities

IntArray = npt.NDArray[np.int64]


class History:
    """The different ids of one request's prompt and output, and how often the output has each."""

    def __init__(self, request: RowRequest, vocab_size: int) -> None:
        params = request.sampling_params
        self.rules = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        self._vocab_size = vocab_size
        self._output = request.output_token_ids
        self._num_counted = 0
        prompt = np.unique(np.asarray(request.prompt_token_ids, dtype=np.int64)) if params.repetition_penalty != 1.0 else ()
        self._place = {int(token_id): place for place, token_id in enumerate(i for i in prompt if 0 <= i < vocab_size)}
        self._ids: IntArray = np.fromiter(self._place, dtype=np.int64, count=len(self._place))
        self._counts: IntArray = np.zeros(len(self._ids), dtype=np.int64)

    def seen(self, drafts: Sequence[int]) -> tuple[IntArray, IntArray]:
        """(ids, counts), with `drafts` counted as output."""
        output, counted = self._output, self._num_counted
        if len(output) > counted:
            self._count(output[counted:])
            self._num_counted = len(output)
        size = len(self._place)
        if not drafts:
            return self._ids[:size], self._counts[:size]
        ids, counts, place = self._ids[:size].copy(), self._counts[:size].copy(), dict(self._place)
        kept = (self._ids, self._counts, self._place)
        self._ids, self._counts, self._place = ids, counts, place
        self._count(drafts)
        result = self._ids[: len(place)], self._counts[: len(place)]
        self._ids, self._counts, self._place = kept
        return result

    def _count(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            place = self._place.get(token_id)
            if place is None:
                if not 0 <= token_id < self._vocab_size:
                    continue
                place = self._place[token_id] = len(self._place)
                if place == len(self._ids):
                    self._ids = _longer(self._ids)
                    self._counts = _longer(self._counts)
                self._ids[place] = token_id
                self._counts[place] = 0
            self._counts[place] += 1


def _longer(array: IntArray) -> IntArray:
    """The same numbers, with room for as many again."""
    return np.concatenate((array, np.zeros(max(len(array), 16), dtype=np.int64)))


class Penalties(RowStatesProcessor[History]):
    """Repetition first, then frequency, then presence."""

    capabilities = capabilities.PENALTIES

    def make_state(self, request: RowRequest) -> History | None:
        params = request.sampling_params
        wanted = params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty
        return History(request, self.setup.vocab_size) if wanted else None

    def apply(self, logits: torch.Tensor, rows: LogitsRows) -> bool:
        active = [(row, state.rules, *state.seen(drafts)) for row, state, drafts in self.active_rows(rows)]
        sizes = [len(ids) for _, _, ids, _ in active]
        if not sum(sizes):
            return False
        device = logits.device
        row_index = torch.from_numpy(np.repeat([row for row, *_ in active], sizes)).to(device)
        ids = torch.from_numpy(np.concatenate([ids for _, _, ids, _ in active])).to(device)
        counts = torch.from_numpy(np.concatenate([counts for *_, counts in active])).to(device)
        rules = torch.from_numpy(np.repeat(np.array([rules for _, rules, *_ in active], dtype=np.float32), sizes, axis=0)).to(device)
        repetition, frequency, presence = rules.unbind(dim=1)
        values = logits[row_index, ids]
        values = torch.where(values > 0, values / repetition, values * repetition)
        values -= frequency * counts
        values -= presence * (counts > 0)
        logits[row_index, ids] = values
        return True
