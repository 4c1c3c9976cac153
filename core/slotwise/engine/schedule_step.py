"""One step while it is being decided, and the differences it sends to the runner."""

from __future__ import annotations

from dataclasses import dataclass, field

from slotwise.engine.request import Request
from slotwise.engine.scheduler_output import CachedRequestData
from slotwise.interfaces.kv_cache import BlockCopy


@dataclass(slots=True)
class StepInProgress:
    """What is decided so far in one `schedule`."""

    budget: int
    now: float
    num_scheduled: dict[str, int] = field(default_factory=dict)
    new: list[Request] = field(default_factory=list)
    cached: list[Request] = field(default_factory=list)
    resumed: set[str] = field(default_factory=set)
    new_block_ids: dict[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """Of requests that gained blocks; most of those that generate gain none."""
    block_copies: dict[str, tuple[BlockCopy, ...]] = field(default_factory=dict)
    drafts: dict[str, list[int]] = field(default_factory=dict)
    preempted: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)

    def note(self, request: Request, reason: str) -> None:
        """Keep a policy's reason for the trace."""
        if reason:
            known = self.reasons.get(request.request_id)
            self.reasons[request.request_id] = f"{known}; {reason}" if known else reason

    def cached_request_data(self) -> CachedRequestData:
        """Of the requests the runner knows."""
        requests, gained = self.cached, self.new_block_ids
        return CachedRequestData(
            request_ids=[request.request_id for request in requests],
            resumed_request_ids=self.resumed,
            new_block_ids=[gained.get(request.request_id) for request in requests],
            num_computed_tokens=[request.num_computed_tokens for request in requests],
            num_output_tokens=[len(request.all_token_ids) - request.num_prompt_tokens for request in requests],
        )
