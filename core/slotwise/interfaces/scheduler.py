"""The `scheduler` slot: a policy that orders, admits, sizes and evicts; the core counts tokens and blocks.

The core's scheduler (`engine/scheduler.py`) walks running requests in admission order, then the waiting ones in the policy's order,
under one token budget. It asks the policy at four points and obeys, within the budget and the pool. Each answer carries a short
reason that lands in the trace.

What this file does not know: blocks, batches, models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from pydantic import BaseModel


class SchedulableRequest(Protocol):
    """What a policy may know of a request. Read only."""

    @property
    def request_id(self) -> str:
        """Unique among requests in the engine."""

    @property
    def arrival_time(self) -> float:
        """Seconds, monotonic clock of the engine."""

    @property
    def arrival_index(self) -> int:
        """0, 1, 2, ... in order of arrival; never equal for two requests."""

    @property
    def priority(self) -> int:
        """Smaller is more urgent."""

    @property
    def client_id(self) -> str | None:
        """Whom fairness is owed to."""

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV exists; 0 again after a preemption."""

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""

    @property
    def max_tokens(self) -> int:
        """Most tokens it may generate."""

    @property
    def num_preemptions(self) -> int:
        """How often it lost its blocks to another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerSetup:
    """What a policy is made for."""

    max_num_seqs: int
    """Most requests running at once."""
    max_num_scheduled_tokens: int
    """Token budget of one step."""
    max_model_len: int
    """Longest sequence, in tokens."""
    block_size: int
    """Tokens per KV block."""
    cached_prefix_len: Callable[[SchedulableRequest], int] | None = None
    """Tokens of a request's prompt that the KV cache holds at this moment; costs O(prompt) the first time it is asked for a request, then
    O(hit). None where no cache is at hand."""
    options: BaseModel | None = None
    """The component's validated options model, or None if it declares none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerState:
    """The step so far, as a policy may weigh it. Made anew for each question that needs it."""

    now: float
    """Seconds, the clock of `arrival_time`."""
    token_budget: int
    """Tokens this step may still schedule."""
    num_running: int
    """Requests that hold blocks."""
    num_waiting: int
    """Requests that wait, the one asked about included."""
    num_free_blocks: int
    """KV blocks an allocation could take now."""
    num_usable_blocks: int
    """KV blocks of the whole pool, the null block not counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Yes or no, with the reason for the trace."""

    allowed: bool
    """The answer."""
    reason: str
    """One short sentence for the trace; may be empty for a yes."""


ALLOWED = Decision(allowed=True, reason="")
"""A plain yes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Victim:
    """Whom to preempt, and why."""

    request: SchedulableRequest
    """One of the `running` it was chosen from."""
    reason: str
    """One short sentence for the trace."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """How much of a request to compute now, and why."""

    num_tokens: int
    """1 .. the number asked about."""
    reason: str
    """One short sentence for the trace; may be empty."""


class RequestQueue(Protocol):
    """Waiting requests in an order. The core's own is a heap over `SchedulerPolicy.order_key`."""

    def __len__(self) -> int:
        """Requests that wait."""

    def __iter__(self) -> Iterator[SchedulableRequest]:
        """All of them, in no particular order."""

    def add(self, request: SchedulableRequest, now: float) -> None:
        """A request arrives, or comes back after a preemption."""

    def peek(self, now: float) -> SchedulableRequest:
        """The next one, which stays. Called only while somebody waits."""

    def remove(self, request: SchedulableRequest) -> None:
        """Take a request out, the head or any other; one that does not wait is ignored."""


class SchedulerPolicy(ABC):
    """Base of scheduler policies. Called from the engine's thread only, several times a step: answer in O(log n) or better."""

    dynamic_order: ClassVar[bool] = False
    """True if `order_key` of a waiting request may change with time or with what runs; the queue is then re-keyed once a step, which
    costs O(waiting)."""

    def __init__(self, setup: SchedulerSetup) -> None:
        self.setup = setup

    @abstractmethod
    def order_key(self, request: SchedulableRequest, now: float) -> Any:
        """Sort key among waiting requests, smallest first; keys must be comparable with each other and total (end with
        `arrival_index`). Called when a request starts to wait, arrival or preemption, and once a step if `dynamic_order`."""

    def make_queue(self) -> RequestQueue | None:
        """A queue of the policy's own, where a heap over `order_key` would not do (an order that changes with what runs). Called once.

        None = the core's heap.
        """
        return None

    def order_reason(self, request: SchedulableRequest, now: float) -> str:
        """Why this request is the next, one short sentence. Called once per admission, and only while somebody records the trace."""
        return ""

    def admit(self, request: SchedulableRequest, state: SchedulerState) -> Decision:
        """May the head of the waiting queue start now? A no ends admission for this step. Called once per candidate."""
        return ALLOWED

    def choose_chunk(self, request: SchedulableRequest, num_tokens: int, state: SchedulerState) -> Chunk:
        """How many of `num_tokens` (already within budget and caps) to schedule now.

        Called, if overridden, only for requests with more than one token to compute, and never while chunked prefill is off.
        """
        return Chunk(num_tokens=num_tokens, reason="")

    def displace(self, candidate: SchedulableRequest, running: Sequence[SchedulableRequest], state: SchedulerState) -> Victim | None:
        """A running request that must give way to the waiting `candidate`, which found no seat or no blocks; None = let it wait. Called, if
        overridden, before the first admission of a step; never answer with a request that `order_key` puts before the candidate, or
        the two would take turns for ever."""
        return None

    @abstractmethod
    def choose_victim(self, running: Sequence[SchedulableRequest], blocked: SchedulableRequest) -> Victim:
        """Whom to preempt so that `blocked` gets blocks. `running` is in admission order, never empty, and holds `blocked` itself, which
        may be the answer. Called when the pool is exhausted."""

    def on_scheduled(self, request: SchedulableRequest, num_tokens: int) -> None:
        """`num_tokens` of the request go into this step. Called once per scheduled request and step if overridden."""

    def on_finished(self, request: SchedulableRequest) -> None:
        """The request left the engine, for whatever reason. Called once if overridden."""
