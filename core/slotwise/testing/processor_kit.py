"""`LogitsProcessorKit`: how the cases of the `logits_processor` slot get processors, requests and logits.

What this file does not know: any rule, what a processor does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import torch

from slotwise.interfaces.logits_processor import (
    BatchUpdate,
    LogitsProcessor,
    LogitsProcessorSetup,
    LogitsRows,
    RowRequest,
)
from slotwise.sampling_params import SamplingParams
from slotwise.testing.device_choice import DeviceKit
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


class LogitsProcessorKit(DeviceKit):
    """Base of the classes that hold cases."""

    slot: ClassVar[str] = "logits_processor"
    params: ClassVar[Sequence[Mapping[str, Any]]] = EVERYTHING
    """Arguments of `SamplingParams`; some of them must make the processor do something."""

    def make_processor(self) -> LogitsProcessor:
        """A processor to examine; override it where the class alone would not do."""
        implementation, options = self.implementation()
        processor: LogitsProcessor = implementation(
            LogitsProcessorSetup(vocab_size=VOCAB_SIZE, max_num_reqs=MAX_ROWS, device=self.device_name, encode=_encode, options=options)
        )
        return processor

    def request(self, params: Mapping[str, Any], number: int) -> RowRequest:
        """params: arguments of `SamplingParams`; number: another prompt, and 0 to 3 tokens of output."""
        return RowRequest(
            sampling_params=SamplingParams(**{"max_tokens": 1000, **params}),
            prompt_token_ids=[2, 6, _START, 3 + number],
            output_token_ids=[7, 4, 4][: number % 4],
            stop_token_ids=frozenset({5, 20}),
            bad_words_token_ids=[[4, 9], [11]] if params.get("bad_words") else [],
        )

    def active_requests(self) -> list[RowRequest]:
        """Requests that make it active, 1 to MAX_ROWS. Raises NotClaimedError if none does."""
        candidates = [self.request(params, number + more) for number, params in enumerate(self.params) for more in (0, 1)]
        found = [request for request in candidates if self.started([request]).is_active]
        if not found:
            raise NotClaimedError("none of the parameters tried makes it active; subclass the kit and say in `params` which do")
        return found[:MAX_ROWS]

    def started(self, requests: Sequence[RowRequest]) -> LogitsProcessor:
        """A new processor that was told of these rows at once."""
        processor = self.make_processor()
        processor.update(BatchUpdate(num_rows=len(requests), added=list(enumerate(requests))))
        return processor

    def logits(self, num_rows: int) -> torch.Tensor:
        """[num_rows, VOCAB_SIZE] float32, always the same."""
        generator = torch.Generator().manual_seed(self.seed)
        return (torch.randn(num_rows, VOCAB_SIZE, generator=generator) * 3).to(self.device_name)

    def applied(self, requests: Sequence[RowRequest], logits: torch.Tensor | None = None) -> torch.Tensor:
        """[num_rows, VOCAB_SIZE], what becomes of one row of logits per request. logits: copied; None = those of `logits`."""
        values = self.logits(len(requests)) if logits is None else logits.clone()
        edit(self.started(requests), values, plain_rows(len(requests)))
        return values


_START, _END = 21, 22
"""What `_encode` gives for the markers of thoughts."""


def _encode(text: str) -> list[int]:
    return [_END] if "/" in text else [_START]


def edit(processor: LogitsProcessor, logits: torch.Tensor, rows: LogitsRows) -> None:
    """As the engine does: an inactive processor is not called."""
    if processor.is_active and len(logits):
        processor.apply(logits, rows)


def plain_rows(num_rows: int) -> LogitsRows:
    """Without drafts."""
    return LogitsRows(requests=range(num_rows), drafts=((),) * num_rows)


def equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Up to the rounding of another order of sums."""
    return bool(torch.isclose(first, second, rtol=1e-6, atol=1e-6, equal_nan=True).all())


def growing(request: RowRequest, output_token_ids: Sequence[int] | None = None) -> RowRequest:
    """The same request with an output of its own, which can grow, or with another output."""
    return dataclasses.replace(request, output_token_ids=list(request.output_token_ids if output_token_ids is None else output_token_ids))


def append(request: RowRequest, token_id: int) -> None:
    """A token came. request: made by `growing`."""
    if not isinstance(request.output_token_ids, list):
        raise TypeError(f"the output of {request} cannot grow")
    request.output_token_ids.append(token_id)


def shown(request: RowRequest) -> str:
    """What it wishes, for a message."""
    defaults = SamplingParams()
    params = request.sampling_params
    names = [name.name for name in dataclasses.fields(params) if getattr(params, name.name) != getattr(defaults, name.name)]
    return ", ".join(f"{name}={getattr(params, name)}" for name in names if name != "max_tokens")
