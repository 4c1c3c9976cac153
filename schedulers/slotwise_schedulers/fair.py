"""`fair`: the client that was served least goes first, by virtual token counters.

Source: Sheng et al. 2024, "Fairness in Serving Large Language Models" (VTC). A prompt is charged whole when its request starts, a generated
token once it is known. No token is charged twice: not when a preempted request is computed again, not when it is part of a session's next
prompt.

What this file does not know: how counters are lifted and ordered (`token_counters.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from slotwise.interfaces.scheduler import RequestQueue, SchedulableRequest, SchedulerSetup, Victim
from slotwise_schedulers.budget_shares import BudgetSharingScheduler
from slotwise_schedulers.client_queue import ClientQueue, client_of
from slotwise_schedulers.options import FairOptions
from slotwise_schedulers.token_counters import TokenCounters


class _Account:
    """What was charged for one request, in tokens."""

    __slots__ = ("num_charged_tokens", "num_output_tokens", "num_prompt_tokens", "num_unscheduled_tokens")

    def __init__(self, num_prompt_tokens: int) -> None:
        self.num_charged_tokens = 0
        """Prompt and output."""
        self.num_unscheduled_tokens = 0
        """Of these, the prompt of a request that left the queue and took part in no step yet."""
        self.num_prompt_tokens = num_prompt_tokens
        """Of the turn whose output is counted."""
        self.num_output_tokens = 0
        """Charged in this turn."""


class FairScheduler(BudgetSharingScheduler):
    """Between two clients that both have requests waiting all the time, the difference of weighted tokens served stays bounded, whatever
    they send: see `docs/schedulers.md` for the bound."""

    def __init__(self, setup: SchedulerSetup) -> None:
        self.options = FairOptions.model_validate(setup.options or {})
        super().__init__(setup, self.options)
        self.counters = TokenCounters(self.options.client_weights)
        self._accounts: dict[str, _Account] = {}
        self._queue = ClientQueue(self.counters, on_add=self._starts_to_wait, on_remove=self._leaves_queue)

    def make_queue(self) -> RequestQueue:
        return self._queue

    def order_key(self, request: SchedulableRequest, now: float) -> tuple[float, int]:
        """As of this moment; the queue, not this key, keeps the order."""
        return (self.counters[client_of(request)], request.arrival_index)

    def order_reason(self, request: SchedulableRequest, now: float) -> str:
        return f"client {client_of(request)!r} was served least"

    def choose_victim(self, running: Sequence[SchedulableRequest], blocked: SchedulableRequest) -> Victim:
        """The one admitted last, of the client with the most running requests for its weight. By counters alone two clients that are
        level would take turns, and recompute for each few tokens."""
        num_running = Counter(client_of(request) for request in running)
        load = {client_id: number / self.counters.weight(client_id) for client_id, number in num_running.items()}
        victim = max(reversed(running), key=lambda request: load[client_of(request)])
        client_id = client_of(victim)
        return Victim(request=victim, reason=f"admitted last of client {client_id!r}, which has {num_running[client_id]} running")

    def on_scheduled(self, request: SchedulableRequest, num_tokens: int) -> None:
        account = self._accounts[request.request_id]
        account.num_unscheduled_tokens = 0
        if request.num_output_tokens != account.num_output_tokens:
            self._charge_output(request, account)

    def on_finished(self, request: SchedulableRequest) -> None:
        super().on_finished(request)
        account = self._accounts.pop(request.request_id, None)
        if account is None:
            return  # set aside from its arrival on, it never waited for its turn
        self._take_back_prompt(request, account)
        self._charge_output(request, account)
        self.counters.leave(client_of(request))

    def _starts_to_wait(self, request: SchedulableRequest) -> None:
        account = self._accounts.get(request.request_id)
        if account is None:
            self._accounts[request.request_id] = _Account(request.num_prompt_tokens)
            self.counters.enter(client_of(request))
            return
        self._take_back_prompt(request, account)
        if account.num_prompt_tokens == request.num_prompt_tokens:
            self._charge_output(request, account)
        else:  # a session's next turn: what it generated became prompt
            account.num_prompt_tokens = request.num_prompt_tokens
            account.num_output_tokens = 0

    def _leaves_queue(self, request: SchedulableRequest) -> None:
        """It starts, or it is aborted: then `on_finished` takes the charge back."""
        account = self._accounts[request.request_id]
        num_tokens = request.num_prompt_tokens - account.num_charged_tokens
        if num_tokens > 0:
            account.num_unscheduled_tokens = num_tokens
            account.num_charged_tokens += num_tokens
            self.counters.charge(client_of(request), self.options.input_weight * num_tokens)

    def _take_back_prompt(self, request: SchedulableRequest, account: _Account) -> None:
        num_tokens = account.num_unscheduled_tokens
        if num_tokens:
            account.num_unscheduled_tokens = 0
            account.num_charged_tokens -= num_tokens
            self.counters.charge(client_of(request), -self.options.input_weight * num_tokens)

    def _charge_output(self, request: SchedulableRequest, account: _Account) -> None:
        num_tokens = request.num_output_tokens - account.num_output_tokens
        if num_tokens > 0:
            account.num_output_tokens += num_tokens
            account.num_charged_tokens += num_tokens
            self.counters.charge(client_of(request), self.options.output_weight * num_tokens)
