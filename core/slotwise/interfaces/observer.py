"""The `observer` slot: told of events, decides nothing.

An observer subclasses `Observer` and marks the hooks it wants with `slotwise.plugin.hookspecs.hookimpl`; which hooks exist, when each is
called and what an error does stands there. A hook's method takes the arguments of its specification, or fewer.

What this file does not know: how events are produced, and who listens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel

    from slotwise.engine.outputs import FinishReason, RequestMetrics
    from slotwise.engine.scheduler_output import SchedulerOutput
    from slotwise.interfaces.kv_cache import KVEvent


@dataclass(frozen=True, kw_only=True, slots=True)
class ObserverSetup:
    """What an observer is made for."""

    options: BaseModel | None = None
    """The component's validated options model, or None if it declares none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentInUse:
    """Which component fills a slot, or a part of it."""

    slot: str
    """`attention`, `scheduler`, ..."""
    part: str
    """A layer kind or phase of the attention slot; empty for the whole slot."""
    name: str
    """The component's name."""
    distribution: str
    """Who ships it."""
    version: str
    """The distribution's version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineInfo:
    """The engine that started."""

    model: str
    """Name or path of the model as the configuration gives it."""
    device: str
    """torch's word: `cpu`, `cuda:1`."""
    dtype: str
    """Dtype of the computation: `float32`, ..."""
    max_model_len: int
    """Longest sequence in tokens."""
    block_size: int
    """Tokens per KV block."""
    num_blocks: int
    """Usable blocks of the pool, the null block not counted."""
    components: Sequence[ComponentInUse] = ()
    """What fills the slots."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepEvent:
    """One finished step. Everything it refers to belongs to the engine: read only, copy what is kept."""

    scheduler_output: SchedulerOutput
    """What the step computed."""
    schedule_ms: float
    """Time spent deciding what to compute."""
    execute_ms: float
    """Batch update, forward and logits."""
    sample_ms: float
    """Sampling, the transfer of its result included."""
    update_ms: float
    """Appending tokens, stop checks, freeing."""
    num_running: int
    """Requests running after the step."""
    num_waiting: int
    """Requests waiting after the step."""
    num_kv_blocks: int
    """Usable blocks of the pool."""
    num_free_kv_blocks: int
    """Of these, free after the step, cached but unused ones included."""
    num_generated_tokens: int = 0
    """Tokens kept by requests in this step."""
    num_accepted_draft_tokens: int = 0
    """Drafts that were accepted in this step."""
    kv_events: Sequence[KVEvent] = ()
    """What became findable or was evicted, in order."""

    @property
    def step(self) -> int:
        """Number of the step, as the scheduler counts."""
        return self.scheduler_output.step

    @property
    def num_draft_tokens(self) -> int:
        """Drafts that the step verified."""
        return sum(map(len, self.scheduler_output.scheduled_spec_decode_tokens.values()))

    @property
    def total_ms(self) -> float:
        """Sum of the four durations."""
        return self.schedule_ms + self.execute_ms + self.sample_ms + self.update_ms

    @property
    def kv_usage(self) -> float:
        """Share of the pool in use, 0 .. 1."""
        return 1.0 - self.num_free_kv_blocks / self.num_kv_blocks if self.num_kv_blocks else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestFinished:
    """A request that left the engine."""

    request_id: str
    """The engine's id of the request."""
    reason: FinishReason
    """Why it ended."""
    num_prompt_tokens: int
    """Tokens of the prompt."""
    num_output_tokens: int
    """Tokens generated."""
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    num_preemptions: int = 0
    """How often it lost its blocks and was recomputed."""
    metrics: RequestMetrics | None = None
    """Times, where the engine keeps them."""


class Observer:
    """Base of observers. One instance per engine; hooks are called from the engine's thread, one at a time.

    The base implements no hook, so that an observer pays only for what it listens to.
    """

    def __init__(self, setup: ObserverSetup) -> None:
        """Called once, before the engine starts. May open files; `slotwise_engine_stopped` is the place to close them."""
        self.setup = setup
