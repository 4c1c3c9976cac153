"""Cases of the `kv_cache` slot: what must be found, and by whom."""

from __future__ import annotations

from slotwise.interfaces.kv_cache import ExtraKey
from slotwise.testing.kv_kit import BLOCK_SIZE, PROMPT, KVCacheKit
from slotwise.testing.simulated_request import SimulatedRequest
from slotwise.testing.verdicts import require


class KVLookupCases(KVCacheKit):
    """One rule of lookup each; not claimed by a manager that never finds a prefix."""

    def test_finds_every_whole_cached_block(self) -> None:
        """A prompt seen before is found up to its last whole block, running or ended."""
        simulation = self.caching_simulation()
        request = self.computed(simulation, "a", PROMPT)
        for _ in range(2):
            found = simulation.find(SimulatedRequest("again", [*PROMPT, 1])).num_tokens
            require(found == 12, f"12 tokens in 3 whole blocks are cached, {found} were found")
            shorter = simulation.find(SimulatedRequest("shorter", [*PROMPT[:8], 7, 8])).num_tokens
            require(shorter == 8, f"8 tokens in 2 whole blocks are cached of a prompt that then differs, {shorter} were found")
            simulation.end(request)

    def test_leaves_the_last_token_to_compute(self) -> None:
        """Of a prompt that is cached whole, the last token is not found."""
        simulation = self.caching_simulation()
        self.computed(simulation, "a", PROMPT)
        for length in (4, 8, 12):
            found = simulation.find(SimulatedRequest(f"again{length}", PROMPT[:length])).num_tokens
            require(
                length - BLOCK_SIZE <= found < length,
                f"{found} tokens of a cached prompt of {length} were found; {length - BLOCK_SIZE} to {length - 1} are right",
            )

    def test_a_partly_filled_block_is_not_shared(self) -> None:
        """Requests that share part of a block write into blocks of their own."""
        simulation = self.caching_simulation()
        self.computed(simulation, "a", PROMPT[:6])
        self.computed(simulation, "b", [*PROMPT[:6], 1, 2, 3])
        simulation.check()

    def test_other_keys_are_other_content(self) -> None:
        """Salt, adapter, multimodal item and embeds separate requests, from each other too."""
        simulation = self.caching_simulation(num_usable_blocks=64)
        keys = [(), *((ExtraKey(source=source, value="x", num_tokens=1),) for source in ("cache_salt", "prompt_embeds"))]
        keys += [(ExtraKey(source="adapter", value=value),) for value in ("x", "y")]
        keys += [(ExtraKey(source="multimodal", value="x", first_token=1, num_tokens=2),)]
        for number, extra_keys in enumerate(keys):
            request = SimulatedRequest(f"r{number}", [*PROMPT, 1], extra_keys=extra_keys)
            found = simulation.find(request).num_tokens
            require(found <= 1, f"a request with keys {extra_keys} found {found} tokens of requests with others")
            self.compute(simulation, request)
            again = simulation.find(SimulatedRequest(f"again{number}", [*PROMPT, 1], extra_keys=extra_keys)).num_tokens
            require(
                again >= len(PROMPT), f"a request with keys {extra_keys} found {again} of {len(PROMPT)} tokens computed with the same ones"
            )
        simulation.check()

    def test_who_does_not_read_the_cache_still_fills_it(self) -> None:
        """`skip_reading_prefix_cache` finds nothing; its blocks are found by others."""
        simulation = self.caching_simulation()
        self.computed(simulation, "a", PROMPT[:8])
        shy = SimulatedRequest("shy", PROMPT, skip_reading_prefix_cache=True)
        require(simulation.find(shy).num_tokens == 0, "a request that asked not to read the cache found something")
        self.compute(simulation, shy)
        found = simulation.find(SimulatedRequest("b", [*PROMPT, 1])).num_tokens
        require(found == 12, f"{found} of 12 tokens were found that a request computed which does not read the cache")

    def test_evicts_the_tail_of_a_chain_before_its_head(self) -> None:
        """Never-used blocks go first, then the end of a freed chain: its start stays findable."""
        simulation = self.caching_simulation(num_usable_blocks=6)
        simulation.end(self.computed(simulation, "a", PROMPT))
        simulation.end(self.computed(simulation, "b", range(16)))
        found = simulation.find(SimulatedRequest("again", [*PROMPT, 1])).num_tokens
        require(found == 8, f"one block of three had to go and 8 tokens should still be found, not {found}")

    def test_a_later_request_of_the_same_step_may_share(self) -> None:
        """Blocks promised in a step are written once, and read by whoever found them in it."""
        simulation = self.caching_simulation()
        for name in ("first", "second"):
            request = SimulatedRequest(name, [*PROMPT, 1])
            prefix = simulation.find(request)
            simulation.start(request, request.num_tokens - prefix.num_tokens, prefix)
        simulation.run_step()
        simulation.check()
