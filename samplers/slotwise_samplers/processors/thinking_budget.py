"""`thinking_budget`: a request may spend so many tokens between the markers of its thoughts; then their end is forced.

Thoughts that the prompt opened count. The markers are texts of the model's chat format, one token or several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from slotwise.errors import InvalidRequestError
from slotwise.interfaces.logits_processor import LogitsProcessorSetup, LogitsRows, RowRequest, RowStatesProcessor
from slotwise.sampling_params import SamplingParams
from slotwise_samplers import capabilities
from slotwise_samplers.processors.thinking_options import ThinkingBudgetOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Thoughts:
    """Where a sequence stands; one token further is another object, so that drafts can be tried."""

    start: tuple[int, ...]
    end: tuple[int, ...]
    is_inside: bool = False
    num_inside: int = 0
    """Tokens between markers so far, over all thoughts."""
    tail: tuple[int, ...] = ()
    """The last tokens, as many as a marker has."""

    def after(self, token_id: int) -> Thoughts:
        tail = (*self.tail, token_id)[-max(len(self.start), len(self.end)) :]
        if self.is_inside and tail[-len(self.end) :] == self.end:
            return replace(self, tail=tail, is_inside=False)
        if self.is_inside:
            return replace(self, tail=tail, num_inside=self.num_inside + 1)
        return replace(self, tail=tail, is_inside=tail[-len(self.start) :] == self.start)

    def forced(self, budget: int) -> int | None:
        """The only token that may come next, if the budget is spent."""
        if not self.is_inside or self.num_inside < budget:
            return None
        num_there = next(size for size in range(len(self.end) - 1, -1, -1) if self.tail[len(self.tail) - size :] == self.end[:size])
        return self.end[num_there]


class Budget:
    """Of one request; follows its output."""

    def __init__(self, request: RowRequest, budget: int, thoughts: Thoughts) -> None:
        self._budget = budget
        self._output = request.output_token_ids
        self._num_read = 0
        for token_id in request.prompt_token_ids:
            thoughts = thoughts.after(token_id)
        self._thoughts = thoughts

    def forced(self, drafts: Sequence[int]) -> int | None:
        """As `Thoughts.forced`, behind the output and `drafts`."""
        for token_id in self._output[self._num_read :]:
            self._thoughts = self._thoughts.after(token_id)
        self._num_read = len(self._output)
        thoughts = self._thoughts
        for token_id in drafts:
            thoughts = thoughts.after(token_id)
        return thoughts.forced(self._budget)


class ThinkingBudget(RowStatesProcessor[Budget]):
    """Forces the end marker, token by token."""

    capabilities = capabilities.THINKING_BUDGET

    def __init__(self, setup: LogitsProcessorSetup) -> None:
        super().__init__(setup)
        self._markers = _markers(setup)

    @classmethod
    def check(cls, params: SamplingParams, setup: LogitsProcessorSetup) -> None:
        if params.thinking_token_budget is not None and _markers(setup) is None:
            raise InvalidRequestError(
                "thinking_token_budget needs the markers of thoughts as tokens, but this engine has no tokenizer; leave it out.",
                param="thinking_token_budget",
            )

    def make_state(self, request: RowRequest) -> Budget | None:
        budget = request.sampling_params.thinking_token_budget
        if budget is None or self._markers is None:
            return None
        start, end = self._markers
        return Budget(request, budget, Thoughts(start=start, end=end))

    def apply(self, logits: torch.Tensor, rows: LogitsRows) -> bool:
        forced = [(row, token) for row, state, drafts in self.active_rows(rows) if (token := state.forced(drafts)) is not None]
        for row, token_id in forced:
            logits[row] = -torch.inf
            logits[row, token_id] = 0.0
        return bool(forced)


def _markers(setup: LogitsProcessorSetup) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(start, end) as ids; None without a tokenizer."""
    if setup.encode is None:
        return None
    options = setup.options if isinstance(setup.options, ThinkingBudgetOptions) else ThinkingBudgetOptions()
    return tuple(setup.encode(options.start)), tuple(setup.encode(options.end))
