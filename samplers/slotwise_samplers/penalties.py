"""Repetition, frequency and presence penalties, with counts that follow the outputs token by token.

Source: repetition: CTRL (Keskar et al., 2019), section 4.1; frequency and presence: the OpenAI API's documented formula,
logit - frequency * count - presence * (count > 0), over the output only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slotwise.interfaces.sampler import SamplingMetadata


class Penalties:
    """Applies the penalties of a batch. Counts are kept while the metadata object stays the same and the outputs only grow, so a step costs
    its new tokens and one pass over the penalised rows' logits, not the whole history."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._counts: _PenalisedRows | None = None

    def apply(self, logits: torch.Tensor, metadata: SamplingMetadata) -> bool:
        """In place on float32 logits [num_rows, vocab_size]: repetition, then frequency, then presence. Whether any row is penalised."""
        if metadata.repetition_penalties is None:
            self._counts = None
            return False
        if self._counts is None or not self._counts.follows(metadata):
            self._counts = _PenalisedRows(metadata, self._vocab_size)
        return self._counts.apply(logits)


class _PenalisedRows:
    """The rows of one batch that have any penalty, and what they have produced so far."""

    def __init__(self, metadata: SamplingMetadata, vocab_size: int) -> None:
        repetition, frequency, presence = metadata.repetition_penalties, metadata.frequency_penalties, metadata.presence_penalties
        if repetition is None or frequency is None or presence is None:
            raise ValueError("SamplingMetadata must give all three penalties or none")
        self._metadata = metadata
        self._vocab_size = vocab_size
        self._rows = ((repetition != 1) | (frequency != 0) | (presence != 0)).nonzero().squeeze(-1)
        self._row_list: list[int] = self._rows.tolist()
        self._repetition = repetition[self._rows].unsqueeze(-1)
        self._frequency = frequency[self._rows].unsqueeze(-1)
        self._presence = presence[self._rows].unsqueeze(-1)
        self._outputs = [metadata.output_token_ids[row] for row in self._row_list]
        self._num_counted = [0] * len(self._row_list)
        shape = (len(self._row_list), vocab_size)
        self._output_counts = torch.zeros(shape, dtype=torch.float32, device=repetition.device)
        prompt_counts = torch.zeros_like(self._output_counts)
        _count(prompt_counts, [metadata.prompt_token_ids[row] for row in self._row_list])
        self._in_prompt = prompt_counts > 0

    def follows(self, metadata: SamplingMetadata) -> bool:
        """Whether the counts are of this batch and its outputs, some tokens ago."""
        return metadata is self._metadata and all(
            metadata.output_token_ids[row] is output and len(output) >= counted
            for row, output, counted in zip(self._row_list, self._outputs, self._num_counted, strict=True)
        )

    def apply(self, logits: torch.Tensor) -> bool:
        if not self._row_list:
            return False
        self._count_new_outputs()
        seen = self._output_counts > 0
        penalised = logits[self._rows]
        repeated = torch.where(penalised > 0, penalised / self._repetition, penalised * self._repetition)
        penalised = torch.where(seen | self._in_prompt, repeated, penalised)
        penalised -= self._frequency * self._output_counts
        penalised -= self._presence * seen
        logits[self._rows] = penalised
        return True

    def _count_new_outputs(self) -> None:
        news = []
        for index, (output, counted) in enumerate(zip(self._outputs, self._num_counted, strict=True)):
            new = list(output[counted:])
            if -1 in new:  # A token still in flight; it is counted once it is known.
                new = new[: new.index(-1)]
            news.append(new)
            self._num_counted[index] = counted + len(new)
        _count(self._output_counts, news)


def _count(counts: torch.Tensor, token_ids: Sequence[Sequence[int]]) -> None:
    """counts[row, id] += 1 for each id of each row. counts: [num_rows, vocab_size]; ids without a logit are left out."""
    num_ids = counts.shape[1]
    flat = [row * num_ids + token_id for row, ids in enumerate(token_ids) for token_id in ids if 0 <= token_id < num_ids]
    if flat:
        index = torch.tensor(flat, device=counts.device)
        counts.view(-1).index_add_(0, index, torch.ones_like(index, dtype=counts.dtype))
