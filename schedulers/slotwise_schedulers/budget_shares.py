"""How a step's tokens are divided among prompts that are computed in chunks, so that a long one starves neither who runs nor who waits.

The core serves running requests in admission order, each as much as the budget has left. A long prompt near the front would take all of it,
step after step. Here its chunk is cut so that, of a budget B with R running requests of which P are in their prompts,

    (R - P) tokens are left to those that generate, and
    (B - (R - P)) / (P + 1) is each prompt's part; the last part is for admission. If nobody waits, or no seat is free, there are P parts.

What this file does not know: order, victims, blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.interfaces.scheduler import Chunk, SchedulableRequest, SchedulerPolicy, SchedulerSetup, SchedulerState

if TYPE_CHECKING:
    from slotwise_schedulers.options import BudgetOptions


class BudgetShares:
    """Remembers which requests are in their prompts. A question costs O(1), the first one of a step O(prompts in chunks)."""

    def __init__(self, setup: SchedulerSetup, options: BudgetOptions) -> None:
        self._setup = setup
        self._options = options
        self._prompts: dict[str, SchedulableRequest] = {}
        self._num_prompts = 0
        self._asked: set[str] = set()
        self._asked_at = float("-inf")

    def chunk(self, request: SchedulableRequest, num_tokens: int, state: SchedulerState) -> Chunk:
        """At most `num_tokens` and at least 1. A request that is being admitted gets what is left: all who run were served before it."""
        is_running = request.num_computed_tokens > 0
        if is_running and not _is_in_prompt(request):
            return Chunk(num_tokens=num_tokens, reason="")  # a token to generate, and drafts
        limit, reason = num_tokens, ""
        most = self._options.max_chunk_tokens
        if most is not None and most < limit and state.num_running + state.num_waiting > 1:
            limit, reason = most, f"at most {most} prompt tokens while others are here"
        if self._options.share_budget:
            self._count(request, state.now)
            if is_running and (share := self._share(state)) < limit:
                limit, reason = share, f"its share of the budget is {share}"
        return Chunk(num_tokens=limit, reason=reason)

    def forget(self, request: SchedulableRequest) -> None:
        """It left the engine."""
        self._prompts.pop(request.request_id, None)

    def _count(self, request: SchedulableRequest, now: float) -> None:
        """Note that `request` is in its prompt.

        The first question of a step looks at what became of the prompts of the last one: some ended, some lost their blocks, some were
        not admitted.
        """
        request_id = request.request_id
        if now != self._asked_at or request_id in self._asked:
            self._prompts = {asked_id: asked for asked_id, asked in self._prompts.items() if _is_in_prompt(asked)}
            self._num_prompts = len(self._prompts)
            self._asked.clear()
            self._asked_at = now
        self._asked.add(request_id)
        self._prompts[request_id] = request

    def _share(self, state: SchedulerState) -> int:
        """Tokens. A prompt that was admitted for a single token, unasked, is not counted yet; it stands last, and its part leaves at
        least one token to who waits."""
        seat_is_wanted = state.num_waiting > 0 and state.num_running < self._setup.max_num_seqs
        num_prompts = max(self._num_prompts, 1)
        for_prompts = self._setup.max_num_scheduled_tokens - (state.num_running - num_prompts)
        return max(1, for_prompts // (num_prompts + seat_is_wanted))


class BudgetSharingScheduler(SchedulerPolicy):
    """Base of the built-in policies: chunks by `BudgetShares`. A subclass that overrides `on_finished` calls this one's."""

    def __init__(self, setup: SchedulerSetup, budget: BudgetOptions) -> None:
        super().__init__(setup)
        self._shares = BudgetShares(setup, budget)

    def choose_chunk(self, request: SchedulableRequest, num_tokens: int, state: SchedulerState) -> Chunk:
        return self._shares.chunk(request, num_tokens, state)

    def on_finished(self, request: SchedulableRequest) -> None:
        self._shares.forget(request)


def _is_in_prompt(request: SchedulableRequest) -> bool:
    """Runs, and has more to compute than the token it generates next. A preempted request has computed nothing."""
    return 0 < request.num_computed_tokens < request.num_tokens - 1
