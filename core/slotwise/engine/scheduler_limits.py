"""What the core's scheduler keeps to, whatever the policy says."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class PauseState(enum.Enum):
    """What may be scheduled."""

    UNPAUSED = enum.auto()
    PAUSED_NEW = enum.auto()
    """Running requests go on, none is admitted."""
    PAUSED_ALL = enum.auto()


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerLimits:
    """What the core enforces whatever the policy says."""

    max_num_seqs: int
    max_num_scheduled_tokens: int
    max_model_len: int
    """Never more positions than this, and never more than one request alone can hold in the pool."""
    block_size: int = 1
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    reserve_whole_prompt: bool = False
    num_lookahead_tokens: int = 0
    """Slots behind the scheduled tokens that a proposer's own layers write."""
