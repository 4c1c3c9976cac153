"""Scheduler `shortest_prompt_first`: short prompts start first, and the request that would start last is preempted first."""

from __future__ import annotations

from collections.abc import Sequence

from slotwise.interfaces.scheduler import SchedulableRequest, SchedulerPolicy, SchedulerSetup, Victim
from slotwise_stranger.shortest_prompt_component import ShortestPromptOptions


class ShortestPromptScheduler(SchedulerPolicy):
    """Order of waiting: prompt length in buckets, then arrival."""

    def __init__(self, setup: SchedulerSetup) -> None:
        super().__init__(setup)
        self.bucket_tokens = ShortestPromptOptions.model_validate(setup.options).bucket_tokens

    def order_key(self, request: SchedulableRequest, now: float) -> tuple[int, int]:
        """(bucket of the prompt's length, arrival); the clock plays no part."""
        return request.num_prompt_tokens // self.bucket_tokens, request.arrival_index

    def choose_victim(self, running: Sequence[SchedulableRequest], blocked: SchedulableRequest) -> Victim:
        """The last in the order, so that the first always gets through."""
        victim = max(running, key=lambda request: self.order_key(request, 0.0))
        return Victim(request=victim, reason=f"longest prompt ({victim.num_prompt_tokens} tokens)")
