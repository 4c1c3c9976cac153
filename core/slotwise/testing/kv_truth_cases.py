"""Cases of the `kv_cache` slot: nothing is findable that was not computed, and what is told of the cache is true."""

from __future__ import annotations

from slotwise.testing.kv_kit import BLOCK_SIZE, PROMPT, KVCacheKit
from slotwise.testing.kv_simulation import claims_events
from slotwise.testing.simulated_request import SimulatedRequest
from slotwise.testing.verdicts import NotClaimedError, require


class KVTruthCases(KVCacheKit):
    """One rule each; not claimed by a manager that never finds a prefix."""

    def test_an_undone_step_leaves_nothing_findable(self) -> None:
        """A request preempted in the step it was scheduled for computed nothing in it."""
        simulation = self.caching_simulation()
        request = SimulatedRequest("a", PROMPT)
        simulation.start(request, 4, simulation.find(request))
        simulation.run_step()
        simulation.grow(request, 8)
        simulation.preempt(request)
        found = simulation.find(SimulatedRequest("again", [*PROMPT, 1])).num_tokens
        require(found == 4, f"4 tokens were computed before the step that was undone, {found} are found")

    def test_a_failed_step_leaves_nothing_findable(self) -> None:
        """Blocks of a step whose forward raised are evicted and not found."""
        simulation = self.caching_simulation()
        request = SimulatedRequest("a", PROMPT)
        simulation.start(request, 12, simulation.find(request))
        simulation.fail_step()
        found = simulation.find(SimulatedRequest("again", [*PROMPT, 1])).num_tokens
        require(found == 0, f"{found} tokens are found of a step that failed")
        simulation.check()

    def test_only_scheduled_tokens_become_findable(self) -> None:
        """Neither the rest of a prompt, nor lookahead, nor drafts can be found before they are computed."""
        simulation = self.caching_simulation()
        request = SimulatedRequest("a", PROMPT)
        simulation.start(request, 6, simulation.find(request), num_lookahead=4)
        simulation.run_step()
        found = simulation.find(SimulatedRequest("b", [*PROMPT, 1])).num_tokens
        require(found // BLOCK_SIZE == 1, f"6 of 12 tokens were computed, {found} are found")
        simulation.grow(request, 6, num_drafts=5, num_lookahead=1)
        simulation.run_step(lambda _: (50, 51))
        simulation.grow(request, 1)
        simulation.run_step(lambda _: (52,))
        rejected = simulation.find(SimulatedRequest("c", [*PROMPT, 50, 51, 52, 53, 1])).num_tokens
        require(12 <= rejected < 16, f"14 tokens were computed and 3 drafts rejected, {rejected} tokens are found")
        simulation.check()

    def test_reset_forgets_everything_unless_blocks_are_held(self) -> None:
        """`reset_prefix_cache` is False while a request holds blocks, else nothing is found afterwards."""
        simulation = self.caching_simulation()
        simulation.probes = [SimulatedRequest("probe", [*PROMPT, 1])]
        request = self.computed(simulation, "a", PROMPT)
        simulation.reset()
        require(simulation.find(simulation.probes[0]).num_tokens == 12, "a reset that was refused made blocks unfindable")
        simulation.end(request)
        simulation.reset()
        simulation.check()

    def test_statistics_count_the_lookups_that_were_used(self) -> None:
        """`take_stats`: tokens asked for and found by allocations, preempted requests apart, once."""
        simulation = self.caching_simulation()
        request = self.computed(simulation, "a", PROMPT)
        simulation.check()
        again = self.computed(simulation, "b", [*PROMPT, 1])
        simulation.check()
        simulation.find(SimulatedRequest("only_looking", [*PROMPT, 1]))
        simulation.preempt(again)
        self.compute(simulation, again)
        simulation.check()
        simulation.end(request)
        simulation.check()

    def test_events_tell_what_can_be_found(self) -> None:
        """A listener that knows only the events knows the cache's content."""
        simulation = self.caching_simulation(num_usable_blocks=6)
        if not claims_events(simulation.manager):
            raise NotClaimedError("tells no events")
        simulation.probes = [SimulatedRequest("probe", [*PROMPT, 1])]
        for name, token_ids in (("a", PROMPT), ("b", tuple(range(16))), ("c", (*PROMPT, *range(8)))):
            request = self.computed(simulation, name, token_ids)
            simulation.check()
            simulation.end(request)
            simulation.check()
        simulation.reset()
        simulation.check()
