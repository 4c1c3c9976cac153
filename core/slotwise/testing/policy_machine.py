"""`PolicyMachine`: random arrivals, limits, pools and aborts for one scheduler policy; at the end everybody must be served.

What must hold is not said here: observer and simulation check it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from slotwise.interfaces.scheduler import SchedulerPolicy, SchedulerSetup
from slotwise.testing.policy_simulation import PolicySimulation, Scale

Arrival = tuple[int, int, int, str | None]
ARRIVALS: Final = st.lists(
    st.tuples(st.integers(1, 16), st.integers(1, 8), st.integers(0, 2), st.sampled_from([None, "a", "b"])), max_size=3
)
"""Prompt length, max_tokens, priority, client."""


class PolicyMachine(RuleBasedStateMachine):
    """`num_usable_blocks`: the pools to try, from and to."""

    def __init__(self, make_policy: Callable[[SchedulerSetup], SchedulerPolicy], num_usable_blocks: tuple[int, int]) -> None:
        super().__init__()
        self.make_policy = make_policy
        self.num_usable_blocks = num_usable_blocks
        self.is_sound = False

    @initialize(data=st.data(), is_chunked=st.booleans(), reserve_whole_prompt=st.booleans())
    def build(self, data: st.DataObject, is_chunked: bool, reserve_whole_prompt: bool) -> None:
        max_num_seqs = data.draw(st.integers(1, 4), label="max_num_seqs")
        scale = Scale(
            num_usable_blocks=data.draw(st.integers(*self.num_usable_blocks), label="num_usable_blocks"),
            block_size=data.draw(st.integers(1, 4), label="block_size"),
            max_num_seqs=max_num_seqs,
            token_budget=data.draw(st.integers(max_num_seqs, 12), label="token_budget"),
            long_prefill_token_threshold=data.draw(st.sampled_from([0, 3]), label="threshold"),
            enable_chunked_prefill=is_chunked,
            reserve_whole_prompt=reserve_whole_prompt,
        )
        self.simulation = PolicySimulation(self.make_policy, scale)
        self.is_sound = True

    # One rule only: hypothesis switches rules off for whole runs, and a run that never steps finds nothing.
    @rule(data=st.data(), arrivals=ARRIVALS, event=st.sampled_from(["nothing"] * 5 + ["abort", "drain"]), num_steps=st.integers(1, 3))
    def go_on(self, data: st.DataObject, arrivals: list[Arrival], event: str, num_steps: int) -> None:
        self.is_sound = False
        for prompt_len, max_tokens, priority, client_id in arrivals:
            self.simulation.add([0] * prompt_len, max_tokens=max_tokens, priority=priority, client_id=client_id)
        if event == "abort" and self.simulation.scheduler.requests:
            request_id = data.draw(st.sampled_from(sorted(self.simulation.scheduler.requests)), label="aborted")
            for _ in range(2):
                self.simulation.abort(request_id)
        if event == "drain":
            self.simulation.drain()
        for _ in range(num_steps):
            self.simulation.step()
        self.is_sound = True

    def teardown(self) -> None:
        """Unless a rule failed already, everybody is served."""
        if self.is_sound:
            self.simulation.drain()
