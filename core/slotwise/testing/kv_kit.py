"""`KVCacheKit`: how the cases of the `kv_cache` slot get managers, simulations and computed requests.

What this file does not know: any rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar, Final

from slotwise.interfaces.attention import FULL
from slotwise.interfaces.kv_cache import KVCacheManager, KVCacheSetup, KVGroup
from slotwise.testing.conformance import ComponentConformance
from slotwise.testing.kv_simulation import KVSimulation
from slotwise.testing.simulated_request import SimulatedRequest
from slotwise.testing.verdicts import NotClaimedError, require

BLOCK_SIZE: Final = 4
PROMPT: Final = tuple(range(100, 112))
"""Three full blocks."""


class KVCacheKit(ComponentConformance):
    """Base of the classes that hold cases."""

    slot: ClassVar[str] = "kv_cache"

    def make_manager(self, setup: KVCacheSetup) -> KVCacheManager:
        """A manager to examine; override it where the class alone would not do. May raise ValueError for groups it does not manage."""
        implementation, options = self.implementation()
        manager: KVCacheManager = implementation(setup if options is None else dataclasses.replace(setup, options=options))
        return manager

    def simulation(self, *, num_usable_blocks: int = 16, max_model_len: int = 64) -> KVSimulation:
        """A new manager of one full group, in blocks of `BLOCK_SIZE`."""
        setup = make_setup({"kind": FULL}, num_usable_blocks=num_usable_blocks, max_model_len=max_model_len)
        return KVSimulation(self.make_manager(setup), setup)

    def caching_simulation(self, *, num_usable_blocks: int = 16) -> KVSimulation:
        """The same. Raises NotClaimedError for a manager that never finds a prefix."""
        trial = self.simulation()
        self.computed(trial, "a", PROMPT)
        if trial.find(SimulatedRequest("again", [*PROMPT, 1])).num_tokens == 0:
            raise NotClaimedError("never finds a prefix")
        return self.simulation(num_usable_blocks=num_usable_blocks)

    def computed(self, simulation: KVSimulation, name: str, token_ids: Iterable[int]) -> SimulatedRequest:
        """A request whose tokens were all computed in one step, after what is cached of them."""
        request = SimulatedRequest(name, list(token_ids))
        self.compute(simulation, request)
        return request

    @staticmethod
    def compute(simulation: KVSimulation, request: SimulatedRequest) -> None:
        """Compute all tokens of a request in one step, after what is cached of them."""
        prefix = simulation.find(request)
        fits = simulation.start(request, request.num_tokens - prefix.num_tokens, prefix)
        require(fits, f"{request} of {request.num_tokens} tokens must fit, {simulation.manager.num_free_blocks} blocks are free")
        simulation.run_step()


def make_setup(*kinds: dict[str, Any], num_usable_blocks: int = 16, max_model_len: int = 64) -> KVCacheSetup:
    """One group per kind, with prefix caching and events."""
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
