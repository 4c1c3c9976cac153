"""Cases of the `scheduler` slot that run a policy under the core's scheduler: who is served, in which order, at whose cost."""

from __future__ import annotations

from typing import ClassVar

from slotwise.testing.policy_kit import PolicyKit, add_crowd
from slotwise.testing.policy_simulation import PolicySimulation, Scale
from slotwise.testing.verdicts import NotClaimedError, require


class PolicyServiceCases(PolicyKit):
    """One promise to requests each."""

    max_overtakes: ClassVar[int | None] = None
    """The policy's promise against starvation, if it makes one: at most this many requests start before one that arrived earlier."""

    def test_each_request_alone_is_served(self) -> None:
        """With nobody else there, a request of any size, priority and client starts and ends."""
        simulation = self.simulation(Scale())
        for prompt_len in (1, 3, 4, 16, 17, 47):
            for priority, client_id in ((0, None), (-3, "a"), (7, "b")):
                simulation.add(list(range(prompt_len)), priority=priority, client_id=client_id)
                simulation.drain()

    def test_everybody_is_served(self) -> None:
        """A crowd of all sizes, priorities and clients is served, each request to its last token."""
        simulation = self.simulation(Scale(num_usable_blocks=24))
        add_crowd(simulation)
        simulation.drain()

    def test_preemption_ends(self) -> None:
        """Where two requests cannot run to their end side by side, both do so in the end."""
        for block_size in (1, 4):
            simulation = self.simulation(Scale(num_usable_blocks=40 // block_size, block_size=block_size))
            for number in range(4):
                simulation.add([number] * 12, max_tokens=20, priority=number % 2, client_id="ab"[number % 2])
            simulation.drain()

    def test_abort_is_legal_at_any_time(self) -> None:
        """Waiting, running and preempted requests may go away, and be told to twice."""
        for num_steps in range(12):
            simulation = self.simulation(Scale(num_usable_blocks=10, max_num_seqs=3))
            for number in range(5):
                simulation.add([number] * 10, max_tokens=10, priority=number % 3, client_id="ab"[number % 2])
            for _ in range(num_steps):
                simulation.step()
            for request_id in sorted(simulation.scheduler.requests)[::2] * 2:
                simulation.abort(request_id)
            simulation.drain()

    def test_displacement_is_for_the_more_urgent_only(self) -> None:
        """`displace` takes a seat only from a request that `order_key` puts behind the candidate."""
        self.require_override("displace")
        simulation = self.simulation(Scale(max_num_seqs=2))
        for priority in (5, 5, 0, 0, 9, -1):
            simulation.add([1] * 8, max_tokens=12, priority=priority)
            simulation.step()
        simulation.drain()
        if simulation.observer is not None and simulation.observer.num_displacements == 0:
            raise NotClaimedError("displaced nobody, with these options")

    def test_same_traffic_is_scheduled_the_same(self) -> None:
        """The order depends on requests, clock and what runs, on nothing else."""
        runs = []
        for _ in range(2):
            simulation = self.simulation(Scale(num_usable_blocks=12))
            add_crowd(simulation)
            runs.append([dict(simulation.step().num_scheduled_tokens) for _ in range(60)])
        for number, (first, second) in enumerate(zip(*runs, strict=True)):
            require(first == second, f"step {number} of the same traffic was scheduled as {first} and then as {second}")

    def test_nobody_waits_longer_than_promised(self) -> None:
        """At most `max_overtakes` requests start before one that arrived earlier, however many arrive."""
        if self.max_overtakes is None:
            raise NotClaimedError("makes no promise (max_overtakes) against starvation")
        for prompt_len, priority in ((16, 0), (16, 9), (1, 9)):
            simulation = self.simulation(Scale(max_num_seqs=1))
            simulation.add([5], max_tokens=2, client_id="b")
            simulation.step()
            patient = simulation.add(list(range(100, 100 + prompt_len)), priority=priority, client_id="a")
            self._feed_until_started(simulation, patient, self.max_overtakes)
            simulation.drain()

    @staticmethod
    def _feed_until_started(simulation: PolicySimulation, patient: str, max_overtakes: int) -> None:
        """Keep later requests of every tempting kind waiting until `patient` has started."""
        before = len(simulation.started)
        while patient not in simulation.started:
            while simulation.scheduler.num_waiting < 6:
                number = simulation.scheduler.num_waiting
                simulation.add([5] * (1 + 4 * (number % 2)), max_tokens=1, priority=number % 2 - 1, client_id="bc"[number % 2])
            simulation.step()
            num_overtakes = len([name for name in simulation.started[before:] if name != patient])
            require(num_overtakes <= max_overtakes, f"{num_overtakes} later requests started before {patient}, promised: {max_overtakes}")
