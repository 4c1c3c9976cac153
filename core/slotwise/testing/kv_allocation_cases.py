"""Cases of the `kv_cache` slot: blocks are given out, counted and given back. Nothing here needs a prefix cache."""

from __future__ import annotations

from slotwise.testing.kv_kit import PROMPT, KVCacheKit
from slotwise.testing.kv_traffic import compute_alone
from slotwise.testing.simulated_request import SimulatedRequest
from slotwise.testing.verdicts import ConformanceError, require


class KVAllocationCases(KVCacheKit):
    """One rule of allocation each."""

    def test_a_new_pool_is_free_and_whole(self) -> None:
        """A new manager has every block but the null block free."""
        manager = self.simulation(num_usable_blocks=7).manager
        require(manager.num_usable_blocks == 7, f"a pool of 8 blocks has 7 usable ones, not {manager.num_usable_blocks}")
        require(manager.num_free_blocks == 7, f"a new pool of 7 usable blocks has them all free, not {manager.num_free_blocks}")
        require(manager.block_ids("nobody") == ((),), f"block_ids of an unknown request is ((),), not {manager.block_ids('nobody')}")

    def test_allocates_as_many_blocks_as_tokens_need(self) -> None:
        """Blocks for computed, new and lookahead tokens, none of them the null block."""
        simulation = self.simulation()
        request = SimulatedRequest("a", PROMPT[:9])
        require(simulation.start(request, 5, simulation.find(request)), "5 tokens must fit an empty pool")
        simulation.run_step()
        require(simulation.grow(request, 4, num_lookahead=4), "13 tokens must fit an empty pool")
        simulation.run_step()
        simulation.check()

    def test_refuses_an_allocation_of_no_tokens(self) -> None:
        """ValueError for less than one token, for a new request and a running one."""
        simulation = self.simulation()
        running = self.computed(simulation, "running", PROMPT)
        for request in (running, SimulatedRequest("new", PROMPT)):
            for num_tokens in (0, -1):
                try:
                    simulation.manager.allocate(request, num_tokens)
                except ValueError:
                    continue
                raise ConformanceError(f"allocate for {num_tokens} tokens of {request} must raise ValueError")
        simulation.check()

    def test_a_refused_allocation_changes_nothing(self) -> None:
        """None leaves tables, free blocks and what can be found as they were."""
        simulation = self.simulation(num_usable_blocks=5)
        simulation.probes = [SimulatedRequest("probe", [*PROMPT, 1])]
        simulation.end(self.computed(simulation, "a", PROMPT))
        holder = self.computed(simulation, "holder", [1, 2, 3])
        for request in (SimulatedRequest("long", range(20)), SimulatedRequest("long_hit", [*PROMPT, *range(8)])):
            prefix = simulation.find(request)
            fits = simulation.start(request, request.num_tokens - prefix.num_tokens, prefix)
            require(not fits, f"{request} needs 5 blocks and got room beside one that is held, in a pool of 5")
        require(not simulation.grow(holder, 1, num_lookahead=20), "24 tokens cannot fit a pool of 5 blocks of 4")
        simulation.check()

    def test_freeing_gives_every_block_back_once(self) -> None:
        """After free all blocks are free; freeing again, or a request never seen, changes nothing."""
        simulation = self.simulation()
        first, second = self.computed(simulation, "first", PROMPT), self.computed(simulation, "second", PROMPT[:5])
        for request in (first, first, second, SimulatedRequest("never_seen", PROMPT)):
            simulation.end(request)
            simulation.check()
        manager = simulation.manager
        require(manager.num_free_blocks == manager.num_usable_blocks, "with nothing held every block is free")

    def test_one_request_reaches_the_promised_length(self) -> None:
        """`max_request_tokens` is no longer than what one request alone can hold."""
        for num_usable_blocks, max_model_len in ((5, 64), (16, 30)):
            simulation = self.simulation(num_usable_blocks=num_usable_blocks, max_model_len=max_model_len)
            compute_alone(simulation, SimulatedRequest("a", range(simulation.longest)))
            simulation.check()

    def test_reserving_the_whole_prompt_needs_room_for_it(self) -> None:
        """With `reserve_whole_prompt` a request starts only if its whole prompt fits now."""
        simulation = self.simulation(num_usable_blocks=6)
        self.computed(simulation, "holder", PROMPT)
        long, short = SimulatedRequest("long", range(16)), SimulatedRequest("short", range(12))
        require(
            not simulation.start(long, 4, simulation.find(long), reserve_whole_prompt=True),
            "a prompt of 4 blocks was started though 3 are free and the whole prompt was to be reserved",
        )
        fits = simulation.start(short, 4, simulation.find(short), reserve_whole_prompt=True)
        require(fits, "a prompt of 3 blocks must start while 3 are free")

    def test_common_prefix_is_never_too_long(self) -> None:
        """Blocks are called common only if every request that holds blocks has them."""
        simulation = self.simulation()
        self.computed(simulation, "first", PROMPT)
        simulation.check()
        self.computed(simulation, "second", [*PROMPT[:8], 1, 2, 3, 4])
        simulation.check()
        self.computed(simulation, "other", range(8))
        simulation.check()
