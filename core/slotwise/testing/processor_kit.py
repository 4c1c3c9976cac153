"""`LogitsProcessorKit`: how the cases of the `logits_processor` slot get processors, requests and logits.

What this file does not know: any rule, what a processor does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import torch

from slotwise.errors import ConfigError
from slotwise.interfaces.logits_processor import (
    BatchUpdate,
    LogitsProcessor,
    LogitsProcessorSetup,
    LogitsRows,
    RowRequest,
)
from slotwise.sampling_params import SamplingParams
from slotwise.testing.conformance import ComponentConformance
from slotwise.testing.verdicts import NotClaimedError

VOCAB_SIZE: Final = 24
MAX_ROWS: Final = 8
EVERYTHING: Final[Sequence[Mapping[str, Any]]] = (
    {"allowed_token_ids": [1, 2, 3, 5, 8, 13]},
    {"min_tokens": 6},
    {"logit_bias": {3: 4.0, 7: -9.0}},
    {"repetition_penalty": 1.7},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"thinking_token_budget": 2},
    {"bad_words": ["x"]},
)
"""Parameters that the built-in processors heed."""


class LogitsProcessorKit(ComponentConformance):
    """Base of the classes that hold cases."""

    slot: ClassVar[str] = "logits_processor"
    params: ClassVar[Sequence[Mapping[str, Any]]] = EVERYTHING
    """Arguments of `SamplingParams`; some of them must make the processor do something."""

    def make_processor(self) -> LogitsProcessor:
        """A processor to examine; override it where the class alone would not do."""
        implementation, options = self.implementation()
        processor: LogitsProcessor = implementation(
            LogitsProcessorSetup(vocab_size=VOCAB_SIZE, max_num_reqs=MAX_ROWS, device="cpu", encode=_encode, options=options)
        )
        return processor

    def request(self, params: Mapping[str, Any], number: int) -> RowRequest:
        return RowRequest(
            sampling_params=SamplingParams(**{"max_tokens": 1000, **params}),
            prompt_token_ids=[2, 6, _START, 3 + number],
            output_token_ids=[7, 4, 4][: number % 4],
            stop_token_ids=frozenset({5, 20}),
            bad_words_token_ids=[[4, 9], [11]] if params.get("bad_words") else [],
        )

    def active(self) -> list[RowRequest]:
        """Requests that make it active. Raises NotClaimedError if none does."""
        found = []
        for number, params in enumerate(self.params):
            for length in (number, number + 1):
                request, processor = self.request(params, length), self.make_processor()
                processor.update(BatchUpdate(num_rows=1, added=[(0, request)]))
                if processor.is_active:
                    found.append(request)
        if not found:
            raise NotClaimedError("none of the parameters tried makes it active; subclass the kit and say in `params` which do")
        return found[:MAX_ROWS]

    def logits(self, num_rows: int) -> torch.Tensor:
        return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(self.seed)) * 3

    def applied(self, requests: Sequence[RowRequest]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits before and after."""
        processor = self.make_processor()
        processor.update(BatchUpdate(num_rows=len(requests), added=list(enumerate(requests))))
        before = self.logits(len(requests))
        after = before.clone()
        processor.apply(after, plain_rows(len(requests)))
        return before, after

    def alone(self, request: RowRequest, logits: torch.Tensor) -> torch.Tensor:
        processor = self.make_processor()
        processor.update(BatchUpdate(num_rows=1, added=[(0, request)]))
        rows = logits[None].clone()
        if processor.is_active:
            processor.apply(rows, plain_rows(1))
        return rows[0]


_START, _END = 21, 22
"""What `_encode` gives for the markers of thoughts."""


def _encode(text: str) -> list[int]:
    return [_END] if "/" in text else [_START]


def plain_rows(num_rows: int) -> LogitsRows:
    return LogitsRows(requests=range(num_rows), drafts=((),) * num_rows)


def equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    return bool(torch.isclose(first, second, rtol=1e-6, atol=1e-6, equal_nan=True).all())


def shown(request: RowRequest) -> str:
    defaults = SamplingParams()
    params = request.sampling_params
    names = [name.name for name in dataclasses.fields(params) if getattr(params, name.name) != getattr(defaults, name.name)]
    return ", ".join(f"{name}={getattr(params, name)}" for name in names if name != "max_tokens")
