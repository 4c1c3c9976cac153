"""`KVSimulation`: plays scheduler, model runner and listener for one KV cache manager, and checks every answer.

A step: `start` and `grow` allocate, `run_step` writes and reads the simulated memory (or `fail_step` does what the engine does when a
forward raised), then `check` compares all that can be seen. What this file does not know: chance; who calls it decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slotwise.interfaces.attention import FULL
from slotwise.interfaces.kv_cache import Allocation, BlockCopy, CachedPrefix, KVCacheManager, KVCacheSetup, KVGroup
from slotwise.testing.cache_listener import CacheListener
from slotwise.testing.expected_stats import ExpectedStats
from slotwise.testing.runner_tables import RunnerTables, Table
from slotwise.testing.simulated_memory import GARBAGE, ContentIds, SimulatedMemory, first_visible
from slotwise.testing.simulated_request import SimulatedRequest
from slotwise.testing.verdicts import ConformanceError, require


@dataclass(slots=True)
class Scheduled:
    """One request's part of the step."""

    request: SimulatedRequest
    num_tokens: int
    """Known tokens to compute."""
    num_drafts: int
    """Guessed tokens to compute after them."""
    num_lookahead: int
    has_started: bool
    """Admitted in this very step."""
    copies: tuple[BlockCopy, ...]
    new_token_ids: Sequence[int] = ()
    """What the step yields: accepted drafts, then one more."""


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
        self._memory = SimulatedMemory()
        self._contents = ContentIds()
        self._listener = CacheListener() if claims_events(manager) and setup.enable_events else None

    # -- lookups -------------------------------------------------------------------------------------------------------

    def find(self, request: SimulatedRequest) -> CachedPrefix:
        """The cached prefix of a request that holds nothing, looked up twice."""
        prefix = self.manager.find_cached_prefix(request)
        require(prefix == self.manager.find_cached_prefix(request), f"two lookups of {request} in a row differ, the first said {prefix}")
        require(
            0 <= prefix.num_tokens < request.num_tokens,
            f"{prefix.num_tokens} of {request.num_tokens} tokens of {request} are called cached; the last one must always be recomputed",
        )
        if prefix.num_tokens:
            self._check_prefix(request, prefix)
        return prefix

    def _check_prefix(self, request: SimulatedRequest, prefix: CachedPrefix) -> None:
        require(self.setup.enable_prefix_caching, f"{request} found {prefix.num_tokens} tokens though prefix caching is off")
        require(not request.skip_reading_prefix_cache, f"{request} asked not to read the cache and found {prefix.num_tokens} tokens")
        partial = {hit.group: hit for hit in prefix.partial_hits}
        require(not partial or self.manager.copies_blocks, "only a manager that declares copies_blocks may find parts of blocks")
        for group, table in zip(self.setup.groups, prefix.block_ids, strict=True):
            extra = partial[group.index].num_tokens if group.index in partial else 0
            require(
                0 <= extra < group.block_size and len(table) * group.block_size + extra == prefix.num_tokens,
                f"{len(table)} blocks of {group.block_size} and {extra} tokens of another do not make the {prefix.num_tokens} tokens "
                f"that {request} is said to find in group {group.index}",
            )

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
            self._check_reservation(request)
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
        waiting = [probe for probe in (*self.probes, request) if probe.request_id not in self.tables]
        before = (self.tables.held(), self.manager.num_free_blocks, [self.manager.find_cached_prefix(probe) for probe in waiting])
        allocation = self.manager.allocate(
            request,
            num_tokens,
            cached_prefix=prefix,
            num_lookahead_tokens=num_lookahead,
            reserve_whole_prompt=reserve_whole_prompt,
        )
        if allocation is None:
            self._check_unchanged(request, *before, waiting)
            return None
        computed = request.num_computed_tokens + (prefix.num_tokens if prefix is not None else 0)
        num_slots = min(computed + num_tokens + num_lookahead, self.setup.max_model_len)
        self.tables.extend(request.request_id, allocation, prefix, num_slots)
        require(not allocation.block_copies or self.manager.copies_blocks, "only a manager that declares copies_blocks may ask for copies")
        return allocation

    def _check_unchanged(
        self,
        request: SimulatedRequest,
        held: dict[str, Table],
        num_free: int,
        found: list[CachedPrefix],
        waiting: list[SimulatedRequest],
    ) -> None:
        """What a refused allocation may have changed: out-of-window blocks of this request, nothing else."""
        before = {block_id for tables in held.values() for table in tables for block_id in table if block_id}
        given_back = len(before) - len(self.tables.count_holders())
        self.tables.check()
        for request_id, tables in self.tables.held().items():
            require(request_id == request.request_id or tables == held[request_id], f"a refused allocation changed blocks of {request_id}")
        require(
            self.manager.num_free_blocks == num_free + given_back,
            f"an allocation that was refused changed the free blocks from {num_free} to {self.manager.num_free_blocks}",
        )
        require(
            [self.manager.find_cached_prefix(probe) for probe in waiting] == found,
            "an allocation that was refused changed what can be found",
        )

    def _check_reservation(self, request: SimulatedRequest) -> None:
        tables = self.manager.block_ids(request.request_id)
        missing = sum(
            max(0, -(-request.num_prompt_tokens // group.block_size) - len(table))
            for group, table in zip(self.setup.groups, tables, strict=True)
            if group.kind == FULL
        )
        require(
            missing <= self.manager.num_free_blocks,
            f"reserve_whole_prompt let {request} start with {missing} blocks of its prompt still to come and "
            f"{self.manager.num_free_blocks} free ones",
        )

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

    def run_step(self, sample: Callable[[Scheduled], Sequence[int]] = lambda part: ()) -> list[SimulatedRequest]:
        """Compute what is scheduled. `sample` gives the new tokens of a part whose known tokens are then all computed: up to `num_drafts`
        accepted drafts and one more, or none. Returns the requests that took part."""
        parts = list(self.scheduled.values())
        self._copy(parts)
        for part in parts:
            if part.num_tokens == part.request.num_missing_tokens:
                part.new_token_ids = sample(part)
            part.request.all_token_ids += part.new_token_ids[:-1]
        for part in parts:
            self._write(part, self._num_valid(part))
        for part in parts:
            for position in {part.request.num_computed_tokens, self._num_valid(part) - 1}:
                self._read(part.request, position)
        for part in parts:
            part.request.num_computed_tokens = self._num_valid(part)
            part.request.all_token_ids += part.new_token_ids[-1:]
        self.scheduled.clear()
        return [part.request for part in parts]

    @staticmethod
    def _num_valid(part: Scheduled) -> int:
        """Tokens computed after the step, rejected drafts not counted."""
        return part.request.num_computed_tokens + part.num_tokens + max(0, len(part.new_token_ids) - 1)

    def fail_step(self, *, forgets_everything: bool = False) -> list[SimulatedRequest]:
        """The forward raised half-way: what it wrote is worthless, its requests end. Returns them. `forgets_everything`: all blocks of the
        pool are evicted too, held and free ones."""
        requests = [part.request for part in self.scheduled.values()]
        for part in self.scheduled.values():
            for copy in part.copies:
                self._memory.spoil(copy.target_block, copy.num_tokens)
            self._write(part, 0)
            part.request.num_computed_tokens += part.num_tokens + part.num_drafts
        for request in requests:
            self.manager.evict_blocks([block_id for table in self.manager.block_ids(request.request_id) for block_id in table])
            self.end(request)
        if forgets_everything:
            self.manager.evict_blocks(range(1, self.manager.num_usable_blocks + 1))
            self._check_nothing_is_found("after every block was evicted")
        return requests

    def _copy(self, parts: Sequence[Scheduled]) -> None:
        for part in parts:
            for copy in part.copies:
                self._check_writable(part, copy.target_block, is_known=True)
        self._memory.copy([(copy.source_block, copy.target_block, copy.num_tokens) for part in parts for copy in part.copies])

    def _write(self, part: Scheduled, num_valid: int) -> None:
        request, end = part.request, part.request.num_computed_tokens + part.num_tokens
        last = min(end + part.num_drafts + part.num_lookahead, self.setup.max_model_len)
        for group, table in zip(self.setup.groups, self.manager.block_ids(request.request_id), strict=True):
            for position in range(request.num_computed_tokens, last):
                block_id = table[position // group.block_size]
                self._check_writable(part, block_id, is_known=position < end)
                content = self._contents.at(request, position) if position < num_valid else GARBAGE
                self._memory.write(group, block_id, position, content)

    def _check_writable(self, writer: Scheduled, block_id: int, *, is_known: bool) -> None:
        """Held by the writer, and otherwise only by requests that started with it after it was promised in this very step."""
        require(block_id != 0, f"{writer.request} would write into the null block")
        order = list(self.scheduled)
        for request_id, tables in self.tables.held().items():
            if request_id == writer.request.request_id or not any(block_id in table for table in tables):
                continue
            reader = self.scheduled.get(request_id)
            is_later = reader is not None and reader.has_started and order.index(request_id) > order.index(writer.request.request_id)
            if not (is_known and is_later):
                raise ConformanceError(f"{writer.request} would write into block {block_id}, which {request_id} shares")

    def _read(self, request: SimulatedRequest, position: int) -> None:
        for group, table in zip(self.setup.groups, self.manager.block_ids(request.request_id), strict=True):
            for seen in range(first_visible(group, position), position + 1):
                block_id = table[seen // group.block_size]
                require(block_id != 0, f"position {position} of {request} sees position {seen}, whose block was given back")
                require(
                    self._memory.read(group, block_id, seen) == self._contents.at(request, seen),
                    f"block {block_id} of group {group.index} does not hold K and V of position {seen} of {request}",
                )

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
