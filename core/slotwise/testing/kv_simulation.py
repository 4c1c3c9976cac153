"""`KVSimulation`: plays scheduler, model runner and listener for one KV cache manager, and checks every answer.

A step: `start` and `grow` allocate, `run_step` writes and reads the simulated memory (or `fail_step` does what the engine does when a
forward raised), then `check` compares all that can be seen. What this file does not know: chance; who calls it decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slotwise.interfaces.attention import FULL
from slotwise.interfaces.kv_cache import NULL_BLOCK_ID, Allocation, CachedPrefix, KVCacheManager, KVCacheSetup, KVGroup
from slotwise.testing.cache_listener import CacheListener
from slotwise.testing.expected_stats import ExpectedStats
from slotwise.testing.kv_answers import BeforeRefusal, check_prefix, check_reservation
from slotwise.testing.runner_tables import RunnerTables
from slotwise.testing.simulated_request import SimulatedRequest
from slotwise.testing.simulated_step import Scheduled, SimulatedStep
from slotwise.testing.verdicts import require


class KVSimulation:
    """One manager and the requests that go through it."""

    def __init__(self, manager: KVCacheManager, setup: KVCacheSetup, probes: Sequence[SimulatedRequest] = ()) -> None:
        self.manager = manager
        self.setup = setup
        self.longest = manager.max_request_tokens()
        require(
            1 <= self.longest <= setup.max_model_len,
            f"max_request_tokens must be between 1 and max_model_len {setup.max_model_len}, not {self.longest}",
        )
        self.tables = RunnerTables(manager, setup.groups)
        self.scheduled: dict[str, Scheduled] = {}
        self.probes = probes
        """Requests that never start; looked up to see what can be found."""
        self.stats = ExpectedStats(setup.enable_prefix_caching)
        self._step = SimulatedStep(setup, self.tables)
        self._listener = CacheListener() if claims_events(manager) and setup.enable_events else None

    # -- lookups -------------------------------------------------------------------------------------------------------

    def find(self, request: SimulatedRequest) -> CachedPrefix:
        """The cached prefix of a request that holds nothing, looked up twice."""
        prefix = self.manager.find_cached_prefix(request)
        require(prefix == self.manager.find_cached_prefix(request), f"two lookups of {request} in a row differ, the first said {prefix}")
        check_prefix(self.manager, self.setup, request, prefix)
        return prefix

    # -- one step ------------------------------------------------------------------------------------------------------

    def start(
        self,
        request: SimulatedRequest,
        num_tokens: int,
        prefix: CachedPrefix,
        *,
        num_lookahead: int = 0,
        reserve_whole_prompt: bool = False,
    ) -> bool:
        """Admit a request with what `find` said. False = no room."""
        allocation = self._allocate(request, num_tokens, prefix, num_lookahead=num_lookahead, reserve_whole_prompt=reserve_whole_prompt)
        if allocation is None:
            return False
        self.stats.count(request, prefix)
        if reserve_whole_prompt:
            check_reservation(self.manager, self.setup, request)
        request.num_computed_tokens = prefix.num_tokens
        self._schedule(request, num_tokens, 0, num_lookahead, allocation, has_started=True)
        return True

    def grow(self, request: SimulatedRequest, num_tokens: int, *, num_drafts: int = 0, num_lookahead: int = 0) -> bool:
        """Room for more tokens of a running request. False = no room."""
        allocation = self._allocate(request, num_tokens + num_drafts, None, num_lookahead=num_lookahead)
        if allocation is None:
            return False
        self._schedule(request, num_tokens, num_drafts, num_lookahead, allocation, has_started=False)
        return True

    def _schedule(
        self, request: SimulatedRequest, num_tokens: int, drafts: int, lookahead: int, allocation: Allocation, *, has_started: bool
    ) -> None:
        self.scheduled[request.request_id] = Scheduled(request, num_tokens, drafts, lookahead, has_started, allocation.block_copies)

    def _allocate(
        self,
        request: SimulatedRequest,
        num_tokens: int,
        prefix: CachedPrefix | None,
        *,
        num_lookahead: int = 0,
        reserve_whole_prompt: bool = False,
    ) -> Allocation | None:
        before = BeforeRefusal(self.manager, self.tables, request, self.probes)
        allocation = self.manager.allocate(
            request,
            num_tokens,
            cached_prefix=prefix,
            num_lookahead_tokens=num_lookahead,
            reserve_whole_prompt=reserve_whole_prompt,
        )
        if allocation is None:
            before.check_unchanged()
            return None
        computed = request.num_computed_tokens + (prefix.num_tokens if prefix is not None else 0)
        num_slots = min(computed + num_tokens + num_lookahead, self.setup.max_model_len)
        self.tables.extend(request.request_id, allocation, prefix, num_slots)
        require(not allocation.block_copies or self.manager.copies_blocks, "only a manager that declares copies_blocks may ask for copies")
        return allocation

    def preempt(self, request: SimulatedRequest) -> None:
        """The request loses its blocks, and its part of this step if it had one."""
        self.end(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1

    def end(self, request: SimulatedRequest) -> None:
        """The request gives its blocks back, whatever it was doing. Known or not, it may be told twice."""
        self.manager.free(request)
        self.scheduled.pop(request.request_id, None)
        self.tables.drop(request.request_id)

    def run_step(self, sample: Callable[[Scheduled], Sequence[int]] | None = None) -> list[SimulatedRequest]:
        """Compute what is scheduled. `sample` gives the new tokens of a part whose known tokens are then all computed: up to `num_drafts`
        accepted drafts and one more, or none. Returns the requests that took part."""
        parts = list(self.scheduled.values())
        for part in parts:
            if sample is not None and part.num_tokens == part.request.num_missing_tokens:
                part.new_token_ids = sample(part)
            part.request.all_token_ids += part.new_token_ids[:-1]
        self._step.run(self.scheduled)
        for part in parts:
            part.request.num_computed_tokens = part.num_valid_tokens
            part.request.all_token_ids += part.new_token_ids[-1:]
        self.scheduled.clear()
        return [part.request for part in parts]

    def fail_step(self, *, forgets_everything: bool = False) -> list[SimulatedRequest]:
        """The forward raised half-way: what it wrote is worthless, its requests end. Returns them. `forgets_everything`: all blocks of the
        pool are evicted too, held and free ones."""
        requests = [part.request for part in self.scheduled.values()]
        self._step.fail(self.scheduled)
        for part in self.scheduled.values():
            part.request.num_computed_tokens += part.num_tokens + part.num_drafts
        for request in requests:
            self.manager.evict_blocks([block_id for table in self.manager.block_ids(request.request_id) for block_id in table])
            self.end(request)
        if forgets_everything:
            self.manager.evict_blocks(range(NULL_BLOCK_ID + 1, NULL_BLOCK_ID + 1 + self.manager.num_usable_blocks))
            self._check_nothing_is_found("after every block was evicted")
        return requests

    # -- what can be seen ----------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Ask the manager to forget everything. One that inherits the method has nothing to forget."""
        if type(self.manager).reset_prefix_cache is KVCacheManager.reset_prefix_cache:
            return
        is_idle = not self.tables.held()
        was_reset = self.manager.reset_prefix_cache()
        require(was_reset == is_idle, f"reset_prefix_cache said {was_reset} while {len(self.tables.held())} requests held blocks")
        if was_reset:
            self.stats.was_reset = True
            self._check_nothing_is_found("after a reset")

    def _check_nothing_is_found(self, when: str) -> None:
        for probe in self.probes:
            num_tokens = self.manager.find_cached_prefix(probe).num_tokens
            require(num_tokens == 0, f"{num_tokens} tokens of {probe} are found {when}")

    def check(self, waiting: Sequence[SimulatedRequest] = ()) -> None:
        """Everything that must hold between steps."""
        self.tables.check()
        self.tables.check_common_prefix()
        self.stats.check(self.manager.take_stats())
        if self._listener is not None:
            self._listener.observe(self.manager.take_events())
            if [group.kind for group in self.setup.groups] == [FULL]:
                for request in (*waiting, *self.probes):
                    self._check_events(self._listener, request, self.setup.groups[0])

    def _check_events(self, listener: CacheListener, request: SimulatedRequest, group: KVGroup) -> None:
        if request.skip_reading_prefix_cache:
            return
        told = listener.num_findable_tokens(request, group.index, group.block_size)
        found = self.find(request).num_tokens
        require(
            found // group.block_size * group.block_size == told,
            f"{request} finds {found} tokens, but from the events a listener knows of {told} in whole blocks",
        )


def claims_events(manager: KVCacheManager) -> bool:
    """Whether the manager tells of what it stores."""
    return type(manager).take_events is not KVCacheManager.take_events
