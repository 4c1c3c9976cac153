"""The `logits_processor` slot: edits of logits, request by request, before a token is sampled.

Processors see every row of logits together with the tokens before it, drafts under verification included, so that one acts the same
with and without speculation. They run in the order of `LogitsProcessorCapabilities.order`; those that cannot change which id is the most
likely run after temperature, and for greedy rows not at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

    from slotwise.sampling_params import SamplingParams


@dataclass(frozen=True, kw_only=True, slots=True)
class LogitsProcessorCapabilities:
    """What a processor claims."""

    changes_argmax: bool = True
    """May change which id of a row is the most likely."""
    order: int = 50
    """Lower runs first. The built-in ones: allowed_token_ids 10, bad_words 20, min_tokens 30, logit_bias 40, thinking_budget 60,
    penalties 70."""
    extra_args: tuple[str, ...] = ()
    """Keys of `SamplingParams.extra_args` it reads; a key that no processor of an engine reads is refused."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    """Torch device types it runs on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogitsProcessorSetup:
    """What a processor is made for."""

    vocab_size: int
    """Columns of the logits."""
    max_num_reqs: int
    """Most requests of a step."""
    device: str
    """Torch device of the logits."""
    encode: Callable[[str], list[int]] | None = None
    """Text -> token ids, no special tokens added; None for an engine without tokenizer."""
    options: BaseModel | None = None
    """The component's validated options model, or None if it declares none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowRequest:
    """The request of a row."""

    sampling_params: SamplingParams
    """Read only."""
    prompt_token_ids: Sequence[int]
    """Read only."""
    output_token_ids: Sequence[int]
    """The engine's own list: it grows as tokens come, and only grows."""
    stop_token_ids: frozenset[int] = frozenset()
    """EOS and the caller's stop ids."""
    bad_words_token_ids: Sequence[Sequence[int]] = ()
    """`SamplingParams.bad_words` as ids, with and without a leading blank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowMove:
    """A request went from one row to another, or two exchanged theirs."""

    source: int
    """Row it was in."""
    target: int
    """Row it is in now; whoever was there has left, unless they exchanged."""
    is_swap: bool = False
    """They exchanged rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchUpdate:
    """How the batch changed since the last step. To be applied as removed, then added, then moved, each in order."""

    num_rows: int
    """Requests in the batch afterwards."""
    removed: Sequence[int] = ()
    """Rows whose request left; some are filled again by `added`."""
    added: Sequence[tuple[int, RowRequest]] = ()
    """(row, request) of those that came."""
    moved: Sequence[RowMove] = ()
    """In the order in which it happened."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogitsRows:
    """Which request and place each row of the logits belongs to."""

    requests: Sequence[int]
    """[num_logits], rows of the batch; without drafts 0, 1, 2, ..."""
    drafts: Sequence[Sequence[int]]
    """[num_logits], drafts that stand between the request's output and the row's token: they count as output here."""
    has_drafts: bool = False
    """False: every entry of `drafts` is empty and `requests` counts up."""


class LogitsProcessor(ABC):
    """Base of processors. One instance per engine."""

    capabilities = LogitsProcessorCapabilities()
    """Must equal the `Component` record's capabilities."""

    def __init__(self, setup: LogitsProcessorSetup) -> None:
        self.setup = setup

    @classmethod
    def check(cls, params: SamplingParams, setup: LogitsProcessorSetup) -> None:
        """Called once per request, before it is accepted, maybe on another thread. Raises InvalidRequestError for parameters that cannot be
        served."""

    @abstractmethod
    def update(self, update: BatchUpdate) -> None:
        """Called before a step whose batch differs from the last one's."""

    @property
    @abstractmethod
    def is_active(self) -> bool:
        """Whether any row of the batch wants something of this processor; if not, `apply` is not called."""

    @abstractmethod
    def apply(self, logits: torch.Tensor, rows: LogitsRows) -> bool:
        """Change logits in place; returns whether anything may have changed. Called once a step while active.

        logits: [num_logits, vocab_size] float32. A row's result must depend on its own request alone. An id at -inf stays there, unless the
        processor forces one id, which is then the only one left.
        """


State = TypeVar("State")
"""What a processor keeps of a row."""


class RowStatesProcessor(LogitsProcessor, Generic[State]):
    """A processor that keeps something for each row that wants it, and nothing for the others. Applies batch updates for its subclass."""

    def __init__(self, setup: LogitsProcessorSetup) -> None:
        super().__init__(setup)
        self.states: dict[int, State] = {}
        """Row -> what `make_state` gave."""

    @abstractmethod
    def make_state(self, request: RowRequest) -> State | None:
        """What is kept for a request that enters the batch (again, after a preemption); None = it wants nothing."""

    @property
    def is_active(self) -> bool:
        """Some row has a state."""
        return bool(self.states)

    def update(self, update: BatchUpdate) -> None:
        """Removed, added, moved."""
        states = self.states
        for row in update.removed:
            states.pop(row, None)
        for row, request in update.added:
            states.pop(row, None)
            if (state := self.make_state(request)) is not None:
                states[row] = state
        for move in update.moved:
            source, target = states.pop(move.source, None), states.pop(move.target, None)
            if source is not None:
                states[move.target] = source
            if move.is_swap and target is not None:
                states[move.source] = target

    def active_rows(self, rows: LogitsRows) -> Iterator[tuple[int, State, Sequence[int]]]:
        """(row of the logits, state of its request, drafts before it), for the rows of requests that want something."""
        if not rows.has_drafts:
            for row, state in self.states.items():
                yield row, state, ()
            return
        for index, request in enumerate(rows.requests):
            if (found := self.states.get(request)) is not None:
                yield index, found, rows.drafts[index]
