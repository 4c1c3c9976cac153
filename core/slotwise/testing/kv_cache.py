"""`KVCacheManagerConformance`: the cases of the `kv_cache` slot.

First each rule by an example of its own, then all rules at once under random traffic. A manager that never finds a prefix, tells no
events or refuses a kind of group has not claimed those. What this file does not know: how blocks are kept or named.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Final

from slotwise.interfaces.attention import CHUNKED_LOCAL, FULL, SLIDING_WINDOW
from slotwise.interfaces.kv_cache import ExtraKey, KVCacheManager, KVCacheSetup, KVGroup
from slotwise.testing.conformance import ComponentConformance
from slotwise.testing.kv_machine import KVCacheMachine, compute_alone
from slotwise.testing.kv_simulation import KVSimulation, claims_events
from slotwise.testing.simulated_request import SimulatedRequest
from slotwise.testing.verdicts import ConformanceError, NotClaimedError, require

BLOCK_SIZE: Final = 4
NUM_STEPS: Final = 30
FULL_KINDS: Final[tuple[dict[str, Any], ...]] = ({"kind": FULL},)
WINDOW_KINDS: Final = tuple({"kind": SLIDING_WINDOW, "sliding_window": window} for window in (1, 4, 6))
CHUNK_KINDS: Final = tuple({"kind": CHUNKED_LOCAL, "chunk_len": length} for length in (6, 8))
A: Final = tuple(range(100, 112))
"""A prompt of three full blocks."""


class KVCacheManagerConformance(ComponentConformance):
    """Subclass it in a test module as `class TestMyManager(KVCacheManagerConformance): component = "my_manager"`."""

    slot: ClassVar[str] = "kv_cache"

    def make_manager(self, setup: KVCacheSetup) -> KVCacheManager:
        """A manager to examine; override it where the class alone would not do. May raise ValueError for groups it does not manage."""
        implementation, options = self.implementation()
        manager: KVCacheManager = implementation(_with_options(setup, options))
        return manager

    # -- one rule each -------------------------------------------------------------------------------------------------

    def test_a_new_pool_is_free_and_whole(self) -> None:
        """A new manager has every block but the null block free."""
        manager = self._simulation(num_usable_blocks=7).manager
        require(manager.num_usable_blocks == 7, f"a pool of 8 blocks has 7 usable ones, not {manager.num_usable_blocks}")
        require(manager.num_free_blocks == 7, f"a new pool of 7 usable blocks has them all free, not {manager.num_free_blocks}")
        require(manager.block_ids("nobody") == ((),), f"block_ids of an unknown request is ((),), not {manager.block_ids('nobody')}")

    def test_allocates_as_many_blocks_as_tokens_need(self) -> None:
        """Blocks for computed, new and lookahead tokens, none of them the null block."""
        simulation = self._simulation()
        request = SimulatedRequest("a", A[:9])
        require(simulation.start(request, 5, simulation.find(request)), "5 tokens must fit an empty pool")
        simulation.run_step()
        require(simulation.grow(request, 4, num_lookahead=4), "13 tokens must fit an empty pool")
        simulation.run_step()
        simulation.check()

    def test_refuses_an_allocation_of_no_tokens(self) -> None:
        """ValueError for less than one token, for a new request and a running one."""
        simulation = self._simulation()
        running = self._computed(simulation, "running", A)
        for request in (running, SimulatedRequest("new", A)):
            for num_tokens in (0, -1):
                try:
                    simulation.manager.allocate(request, num_tokens)
                except ValueError:
                    continue
                raise ConformanceError(f"allocate for {num_tokens} tokens of {request} must raise ValueError")
        simulation.check()

    def test_a_refused_allocation_changes_nothing(self) -> None:
        """None leaves tables, free blocks and what can be found as they were."""
        simulation = self._simulation(num_usable_blocks=5)
        simulation.probes = [SimulatedRequest("probe", [*A, 1])]
        simulation.end(self._computed(simulation, "a", A))
        holder = self._computed(simulation, "holder", [1, 2, 3])
        for request in (SimulatedRequest("long", range(20)), SimulatedRequest("long_hit", [*A, *range(8)])):
            prefix = simulation.find(request)
            fits = simulation.start(request, request.num_tokens - prefix.num_tokens, prefix)
            require(not fits, f"{request} needs 5 blocks and got room beside one that is held, in a pool of 5")
        require(not simulation.grow(holder, 1, num_lookahead=20), "24 tokens cannot fit a pool of 5 blocks of 4")
        simulation.check()

    def test_freeing_gives_every_block_back_once(self) -> None:
        """After free all blocks are free; freeing again, or a request never seen, changes nothing."""
        simulation = self._simulation()
        first, second = self._computed(simulation, "first", A), self._computed(simulation, "second", A[:5])
        for request in (first, first, second, SimulatedRequest("never_seen", A)):
            simulation.end(request)
            simulation.check()
        manager = simulation.manager
        require(manager.num_free_blocks == manager.num_usable_blocks, "with nothing held every block is free")

    def test_one_request_reaches_the_promised_length(self) -> None:
        """`max_request_tokens` is no longer than what one request alone can hold."""
        for num_usable_blocks, max_model_len in ((5, 64), (16, 30)):
            simulation = self._simulation(num_usable_blocks=num_usable_blocks, max_model_len=max_model_len)
            compute_alone(simulation, SimulatedRequest("a", range(simulation.longest)))
            simulation.check()

    def test_reserving_the_whole_prompt_needs_room_for_it(self) -> None:
        """With `reserve_whole_prompt` a request starts only if its whole prompt fits now."""
        simulation = self._simulation(num_usable_blocks=6)
        self._computed(simulation, "holder", A)
        long, short = SimulatedRequest("long", range(16)), SimulatedRequest("short", range(12))
        require(
            not simulation.start(long, 4, simulation.find(long), reserve_whole_prompt=True),
            "a prompt of 4 blocks was started though 3 are free and the whole prompt was to be reserved",
        )
        fits = simulation.start(short, 4, simulation.find(short), reserve_whole_prompt=True)
        require(fits, "a prompt of 3 blocks must start while 3 are free")

    def test_common_prefix_is_never_too_long(self) -> None:
        """Blocks are called common only if every request that holds blocks has them."""
        simulation = self._simulation()
        self._computed(simulation, "first", A)
        simulation.check()
        self._computed(simulation, "second", [*A[:8], 1, 2, 3, 4])
        simulation.check()
        self._computed(simulation, "other", range(8))
        simulation.check()

    # -- the prefix cache ----------------------------------------------------------------------------------------------

    def test_finds_every_whole_cached_block(self) -> None:
        """A prompt seen before is found up to its last whole block, running or ended."""
        simulation = self._caching_simulation()
        request = self._computed(simulation, "a", A)
        for _ in range(2):
            found = simulation.find(SimulatedRequest("again", [*A, 1])).num_tokens
            require(found == 12, f"12 tokens in 3 whole blocks are cached, {found} were found")
            shorter = simulation.find(SimulatedRequest("shorter", [*A[:8], 7, 8])).num_tokens
            require(shorter == 8, f"8 tokens in 2 whole blocks are cached of a prompt that then differs, {shorter} were found")
            simulation.end(request)

    def test_leaves_the_last_token_to_compute(self) -> None:
        """Of a prompt that is cached whole, the last token is not found."""
        simulation = self._caching_simulation()
        self._computed(simulation, "a", A)
        for length in (4, 8, 12):
            found = simulation.find(SimulatedRequest(f"again{length}", A[:length])).num_tokens
            require(
                length - BLOCK_SIZE <= found < length,
                f"{found} tokens of a cached prompt of {length} were found; {length - BLOCK_SIZE} to {length - 1} are right",
            )

    def test_a_partly_filled_block_is_not_shared(self) -> None:
        """Requests that share part of a block write into blocks of their own."""
        simulation = self._caching_simulation()
        self._computed(simulation, "a", A[:6])
        self._computed(simulation, "b", [*A[:6], 1, 2, 3])
        simulation.check()

    def test_other_keys_are_other_content(self) -> None:
        """Salt, adapter, multimodal item and embeds separate requests, from each other too."""
        simulation = self._caching_simulation(num_usable_blocks=64)
        keys = [(), *((ExtraKey(source=source, value="x", num_tokens=1),) for source in ("cache_salt", "prompt_embeds"))]
        keys += [(ExtraKey(source="adapter", value=value),) for value in ("x", "y")]
        keys += [(ExtraKey(source="multimodal", value="x", first_token=1, num_tokens=2),)]
        for number, extra_keys in enumerate(keys):
            request = SimulatedRequest(f"r{number}", [*A, 1], extra_keys=extra_keys)
            found = simulation.find(request).num_tokens
            require(found <= 1, f"a request with keys {extra_keys} found {found} tokens of requests with others")
            self._compute(simulation, request)
            again = simulation.find(SimulatedRequest(f"again{number}", [*A, 1], extra_keys=extra_keys)).num_tokens
            require(again >= len(A), f"a request with keys {extra_keys} found {again} of {len(A)} tokens computed with the same keys")
        simulation.check()

    def test_who_does_not_read_the_cache_still_fills_it(self) -> None:
        """`skip_reading_prefix_cache` finds nothing; its blocks are found by others."""
        simulation = self._caching_simulation()
        self._computed(simulation, "a", A[:8])
        shy = SimulatedRequest("shy", A, skip_reading_prefix_cache=True)
        require(simulation.find(shy).num_tokens == 0, "a request that asked not to read the cache found something")
        self._compute(simulation, shy)
        found = simulation.find(SimulatedRequest("b", [*A, 1])).num_tokens
        require(found == 12, f"{found} of 12 tokens were found that a request computed which does not read the cache")

    def test_evicts_the_tail_of_a_chain_before_its_head(self) -> None:
        """Never-used blocks go first, then the end of a freed chain: its start stays findable."""
        simulation = self._caching_simulation(num_usable_blocks=6)
        simulation.end(self._computed(simulation, "a", A))
        simulation.end(self._computed(simulation, "b", range(16)))
        found = simulation.find(SimulatedRequest("again", [*A, 1])).num_tokens
        require(found == 8, f"one block of three had to go and 8 tokens should still be found, not {found}")

    def test_an_undone_step_leaves_nothing_findable(self) -> None:
        """A request preempted in the step it was scheduled for computed nothing in it."""
        simulation = self._caching_simulation()
        request = SimulatedRequest("a", A)
        simulation.start(request, 4, simulation.find(request))
        simulation.run_step()
        simulation.grow(request, 8)
        simulation.preempt(request)
        found = simulation.find(SimulatedRequest("again", [*A, 1])).num_tokens
        require(found == 4, f"4 tokens were computed before the step that was undone, {found} are found")

    def test_a_failed_step_leaves_nothing_findable(self) -> None:
        """Blocks of a step whose forward raised are evicted and not found."""
        simulation = self._caching_simulation()
        request = SimulatedRequest("a", A)
        simulation.start(request, 12, simulation.find(request))
        simulation.fail_step()
        found = simulation.find(SimulatedRequest("again", [*A, 1])).num_tokens
        require(found == 0, f"{found} tokens are found of a step that failed")
        simulation.check()

    def test_only_scheduled_tokens_become_findable(self) -> None:
        """Neither the rest of a prompt, nor lookahead, nor drafts can be found before they are computed."""
        simulation = self._caching_simulation()
        request = SimulatedRequest("a", A)
        simulation.start(request, 6, simulation.find(request), num_lookahead=4)
        simulation.run_step()
        found = simulation.find(SimulatedRequest("b", [*A, 1])).num_tokens
        require(found // BLOCK_SIZE == 1, f"6 of 12 tokens were computed, {found} are found")
        simulation.grow(request, 6, num_drafts=5, num_lookahead=1)
        simulation.run_step(lambda part: (50, 51))
        simulation.grow(request, 1)
        simulation.run_step(lambda part: (52,))
        rejected = simulation.find(SimulatedRequest("c", [*A, 50, 51, 52, 53, 1])).num_tokens
        require(12 <= rejected < 16, f"14 tokens were computed and 3 drafts rejected, {rejected} tokens are found")
        simulation.check()

    def test_a_later_request_of_the_same_step_may_share(self) -> None:
        """Blocks promised in a step are written once, and read by whoever found them in it."""
        simulation = self._caching_simulation()
        for name in ("first", "second"):
            request = SimulatedRequest(name, [*A, 1])
            prefix = simulation.find(request)
            simulation.start(request, request.num_tokens - prefix.num_tokens, prefix)
        simulation.run_step()
        simulation.check()

    def test_reset_forgets_everything_unless_blocks_are_held(self) -> None:
        """`reset_prefix_cache` is False while a request holds blocks, else nothing is found afterwards."""
        simulation = self._caching_simulation()
        simulation.probes = [SimulatedRequest("probe", [*A, 1])]
        request = self._computed(simulation, "a", A)
        simulation.reset()
        require(simulation.find(simulation.probes[0]).num_tokens == 12, "a reset that was refused made blocks unfindable")
        simulation.end(request)
        simulation.reset()
        simulation.check()

    def test_statistics_count_the_lookups_that_were_used(self) -> None:
        """`take_stats`: tokens asked for and found by allocations, preempted requests apart, once."""
        simulation = self._caching_simulation()
        request = self._computed(simulation, "a", A)
        simulation.check()
        again = self._computed(simulation, "b", [*A, 1])
        simulation.check()
        simulation.find(SimulatedRequest("only_looking", [*A, 1]))
        simulation.preempt(again)
        self._compute(simulation, again)
        simulation.check()
        simulation.end(request)
        simulation.check()

    def test_events_tell_what_can_be_found(self) -> None:
        """A listener that knows only the events knows the cache's content."""
        simulation = self._caching_simulation(num_usable_blocks=6)
        if not claims_events(simulation.manager):
            raise NotClaimedError("tells no events")
        simulation.probes = [SimulatedRequest("probe", [*A, 1])]
        for name, token_ids in (("a", A), ("b", tuple(range(16))), ("c", (*A, *range(8)))):
            request = self._computed(simulation, name, token_ids)
            simulation.check()
            simulation.end(request)
            simulation.check()
        simulation.reset()
        simulation.check()

    # -- everything at once --------------------------------------------------------------------------------------------

    def test_random_traffic(self) -> None:
        """Random requests, chunks, drafts, aborts, preemptions and failed steps, full attention."""
        self.run_machine(lambda: KVCacheMachine(self.make_manager, [FULL_KINDS]), num_steps=NUM_STEPS)

    def test_random_traffic_without_prefix_caching(self) -> None:
        """The same with `enable_prefix_caching` off: nothing is ever found."""
        self.run_machine(lambda: KVCacheMachine(self.make_manager, [FULL_KINDS], enable_prefix_caching=False), num_steps=NUM_STEPS)

    def test_random_traffic_with_a_sliding_window(self) -> None:
        """The same for one group of sliding-window layers."""
        self._run_kinds(WINDOW_KINDS)

    def test_random_traffic_with_chunked_local_attention(self) -> None:
        """The same for one group of chunked-local layers."""
        self._run_kinds(CHUNK_KINDS)

    def test_random_traffic_with_two_groups(self) -> None:
        """The same for a full group beside another, of other block sizes."""
        self._run_kinds(FULL_KINDS, (*FULL_KINDS, *WINDOW_KINDS, *CHUNK_KINDS))

    # -- what the cases are made of ------------------------------------------------------------------------------------

    def _run_kinds(self, *group_kinds: tuple[dict[str, Any], ...]) -> None:
        try:
            self.make_manager(_setup(*(kinds[-1] for kinds in group_kinds)))
        except ValueError as error:
            raise NotClaimedError(str(error)) from error
        self.run_machine(lambda: KVCacheMachine(self.make_manager, group_kinds), num_steps=NUM_STEPS)

    def _simulation(self, *, num_usable_blocks: int = 16, max_model_len: int = 64) -> KVSimulation:
        setup = _setup({"kind": FULL}, num_usable_blocks=num_usable_blocks, max_model_len=max_model_len)
        return KVSimulation(self.make_manager(setup), setup)

    def _caching_simulation(self, *, num_usable_blocks: int = 16) -> KVSimulation:
        trial = self._simulation()
        self._computed(trial, "a", A)
        if trial.find(SimulatedRequest("again", [*A, 1])).num_tokens == 0:
            raise NotClaimedError("never finds a prefix")
        return self._simulation(num_usable_blocks=num_usable_blocks)

    def _computed(self, simulation: KVSimulation, name: str, token_ids: Any) -> SimulatedRequest:
        """A request whose tokens were all computed in one step, after what is cached of them."""
        request = SimulatedRequest(name, list(token_ids))
        self._compute(simulation, request)
        return request

    @staticmethod
    def _compute(simulation: KVSimulation, request: SimulatedRequest) -> None:
        prefix = simulation.find(request)
        fits = simulation.start(request, request.num_tokens - prefix.num_tokens, prefix)
        require(fits, f"{request} of {request.num_tokens} tokens must fit, {simulation.manager.num_free_blocks} blocks are free")
        simulation.run_step()


def _setup(*kinds: dict[str, Any], num_usable_blocks: int = 16, max_model_len: int = 64) -> KVCacheSetup:
    groups = tuple(
        KVGroup(index=index, layer_names=(f"layer{index}",), block_size=BLOCK_SIZE, bytes_per_block=1, **kind)
        for index, kind in enumerate(kinds)
    )
    return KVCacheSetup(
        groups=groups,
        num_blocks=num_usable_blocks + 1,
        max_model_len=max_model_len,
        enable_prefix_caching=True,
        hash_seed=b"seed",
        max_num_batched_tokens=max_model_len,
        enable_events=True,
    )


def _with_options(setup: KVCacheSetup, options: Any) -> KVCacheSetup:
    return setup if options is None else dataclasses.replace(setup, options=options)
