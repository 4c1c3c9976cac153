"""What one `schedule()` decides, as the model runner receives it. Plain data, no torch, fit to be sent to another process."""

from __future__ import annotations

from dataclasses import dataclass, field

from slotwise.engine.outputs import TokenLogprobs
from slotwise.interfaces.kv_cache import BlockCopy
from slotwise.pooling_params import PoolingParams
from slotwise.sampling_params import SamplingParams


@dataclass(kw_only=True, slots=True)
class NewRequestData:
    """A request the runner does not know yet."""

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    block_ids: tuple[tuple[int, ...], ...]
    """Per KV group, the whole block table."""
    num_computed_tokens: int
    """> 0 after a prefix-cache hit."""
    stop_token_ids: frozenset[int] = frozenset()
    """EOS and stop ids, for min_tokens."""
    bad_words_token_ids: list[list[int]] = field(default_factory=list)
    """Sequences whose last token is banned after the rest of them."""
    pooling: PoolingParams | None = None
    """The prompt is wanted as a vector."""


@dataclass(kw_only=True, slots=True)
class CachedRequestData:
    """Requests the runner knows, as differences: parallel lists, one entry per request."""

    request_ids: list[str] = field(default_factory=list)
    resumed_request_ids: set[str] = field(default_factory=set)
    """Their new_block_ids replace the table instead of extending it."""
    new_block_ids: list[tuple[tuple[int, ...], ...] | None] = field(default_factory=list)
    """None = no new block."""
    num_computed_tokens: list[int] = field(default_factory=list)
    num_output_tokens: list[int] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class HeldBlocks:
    """What a request holds when a step is scheduled."""

    block_ids: tuple[tuple[int, ...], ...]
    """Per KV group, the whole block table."""
    num_computed_tokens: int
    """Before the step."""


@dataclass(kw_only=True, slots=True)
class SchedulerOutput:
    """One step's work."""

    step: int
    scheduled_new_requests: list[NewRequestData]
    scheduled_cached_requests: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    """Request id -> tokens, > 0, in scheduling order."""
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)
    num_common_prefix_blocks: tuple[int, ...] = ()
    """Per KV group, leading blocks that all running requests share; empty unless a backend claims cascade."""
    finished_request_ids: set[str] = field(default_factory=set)
    """Ended since the last step; the runner forgets them. One may come again as new in the same step."""
    preempted_request_ids: set[str] = field(default_factory=set)
    held_blocks: dict[str, HeldBlocks] = field(default_factory=dict)
    """Of every request that holds any, scheduled or not; filled for the KV sanitizer alone (`Scheduler.record_held_blocks`)."""
    block_copies: list[BlockCopy] = field(default_factory=list)
    """To be carried out before the forward: all sources are read, then all targets written."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Request id -> the policy's reason for what it decided, where it gave one."""


@dataclass(kw_only=True, slots=True)
class ModelRunnerOutput:
    """What one step computed."""

    request_ids: list[str]
    """Row order."""
    sampled_token_ids: list[list[int]]
    """Per row; empty while the prompt is not done, and where nothing is to be generated; several where drafts were accepted."""
    completed_prompts: set[str] = field(default_factory=set)
    """Of requests that generate nothing: those whose prompt is computed."""
    embeddings: dict[str, list[float]] = field(default_factory=dict)
    """Request id -> the vector of a prompt that was to be pooled."""
    draft_token_ids: dict[str, list[int]] = field(default_factory=dict)
    """Request id -> drafts to be verified with its next token."""
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    """Request id -> why its logits, or hidden states, were unusable."""
