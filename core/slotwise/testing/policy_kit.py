"""`PolicyKit`: how the cases of the `scheduler` slot get policies and simulations.

What this file does not know: any rule.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Final

from slotwise.engine.request import Request
from slotwise.interfaces.scheduler import SchedulerPolicy, SchedulerSetup
from slotwise.testing.conformance import ComponentConformance
from slotwise.testing.policy_simulation import PolicySimulation, Scale
from slotwise.testing.verdicts import NotClaimedError

SETUP: Final = SchedulerSetup(max_num_seqs=4, max_num_scheduled_tokens=16, max_model_len=64, block_size=4)


class PolicyKit(ComponentConformance):
    """Base of the classes that hold cases."""

    slot: ClassVar[str] = "scheduler"

    def make_policy(self, setup: SchedulerSetup) -> SchedulerPolicy:
        """A policy to examine; override it where the class alone would not do."""
        implementation, options = self.implementation()
        policy: SchedulerPolicy = implementation(setup if options is None else dataclasses.replace(setup, options=options))
        return policy

    def simulation(self, scale: Scale, *, request_class: type[Request] = Request) -> PolicySimulation:
        """The core's scheduler under a new policy, every answer observed."""
        return PolicySimulation(self.make_policy, scale, request_class=request_class)

    def require_override(self, method: str) -> None:
        """Raise NotClaimedError for a policy that does not answer this itself."""
        policy = type(self.make_policy(SETUP))
        if getattr(policy, method) is getattr(SchedulerPolicy, method):
            raise NotClaimedError(f"leaves {method} to the base class")


def add_crowd(simulation: PolicySimulation) -> None:
    """24 requests of all sizes, priorities and clients."""
    for number in range(24):
        prompt = [number % 2] * (1 + 7 * number % 23)
        simulation.add(prompt, max_tokens=1 + number % 5, priority=number % 3, client_id=("a", "b", None)[number % 3])
