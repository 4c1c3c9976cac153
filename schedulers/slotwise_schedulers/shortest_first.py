"""`shortest_first`: the request with the least work left starts first, the one with the most gives way.

What this file does not know: cached prefixes, which would shorten the work; `longest_prefix` goes by them.
"""

from __future__ import annotations

from collections.abc import Sequence

from slotwise.interfaces.scheduler import SchedulableRequest, SchedulerSetup, Victim
from slotwise_schedulers.budget_shares import BudgetSharingScheduler
from slotwise_schedulers.options import ShortestFirstOptions


class ShortestFirstScheduler(BudgetSharingScheduler):
    """Work is the tokens still to compute plus `output_weight` times the tokens that may still be generated.

    With `aging_tokens_per_second` = g, work counts as `work - g * (t - arrival_time)` at time t. As t is the same for all, the order is
    that of `work + g * arrival_time`, which stands still while a request waits.
    """

    def __init__(self, setup: SchedulerSetup) -> None:
        self.options = ShortestFirstOptions.model_validate(setup.options or {})
        super().__init__(setup, self.options)
        self._tokens_per_second = self.options.aging_tokens_per_second or 0.0

    def order_key(self, request: SchedulableRequest, now: float) -> tuple[float, int]:
        return (self._work(request) + self._tokens_per_second * request.arrival_time, request.arrival_index)

    def order_reason(self, request: SchedulableRequest, now: float) -> str:
        forgiven = (now - request.arrival_time) * self._tokens_per_second
        return f"least work: {self._work(request):.0f} tokens" + (f", {forgiven:.0f} forgiven" if forgiven > 0 else "")

    def choose_victim(self, running: Sequence[SchedulableRequest], blocked: SchedulableRequest) -> Victim:
        """Most work left. Running only shortens the work, so whoever has the least stays until it is done."""
        victim = max(running, key=lambda request: self.order_key(request, 0.0))
        return Victim(request=victim, reason=f"most work left: {self._work(victim):.0f} tokens")

    def _work(self, request: SchedulableRequest) -> float:
        """Tokens."""
        to_compute = request.num_tokens - request.num_computed_tokens
        return to_compute + self.options.output_weight * (request.max_tokens - request.num_output_tokens)
