"""`SchedulerPolicyConformance`: the cases of the `scheduler` slot.

Some ask the policy directly, most run it under the core's scheduler, where every answer is checked. Whatever a policy leaves to the base
class it has not claimed. What this file does not know: which order is a good one.
"""

from __future__ import annotations

from typing import Final

from slotwise.testing.policy_answer_cases import PolicyAnswerCases
from slotwise.testing.policy_cost_cases import PolicyCostCases
from slotwise.testing.policy_machine import PolicyMachine
from slotwise.testing.policy_service_cases import PolicyServiceCases

NUM_STEPS: Final = 12


class SchedulerPolicyConformance(PolicyCostCases, PolicyServiceCases, PolicyAnswerCases):
    """Subclass it in a test module as `class TestMyPolicy(SchedulerPolicyConformance): component = "my_policy"`."""

    def test_random_traffic(self) -> None:
        """Random arrivals, limits and aborts, blocks enough: everybody is served."""
        self.run_machine(lambda: PolicyMachine(self.make_policy, (40, 80)), num_steps=NUM_STEPS)

    def test_random_traffic_in_a_small_pool(self) -> None:
        """The same where requests must be preempted."""
        self.run_machine(lambda: PolicyMachine(self.make_policy, (4, 16)), num_steps=NUM_STEPS)
