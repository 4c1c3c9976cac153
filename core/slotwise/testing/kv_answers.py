"""What a KV cache manager's answer must satisfy at the moment it is given: a lookup, a refusal, a reservation.

What this file does not know: what happens with the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from slotwise.interfaces.attention import FULL
from slotwise.interfaces.kv_cache import NULL_BLOCK_ID, CachedPrefix, KVCacheManager, KVCacheSetup
from slotwise.testing.runner_tables import RunnerTables
from slotwise.testing.simulated_request import SimulatedRequest
from slotwise.testing.verdicts import require


def check_prefix(manager: KVCacheManager, setup: KVCacheSetup, request: SimulatedRequest, prefix: CachedPrefix) -> None:
    """A lookup's answer: never the last token, nothing where nothing is to be read, and the blocks make up the tokens."""
    require(
        0 <= prefix.num_tokens < request.num_tokens,
        f"{prefix.num_tokens} of {request.num_tokens} tokens of {request} are called cached; the last one must always be recomputed",
    )
    if prefix.num_tokens == 0:
        return
    require(setup.enable_prefix_caching, f"{request} found {prefix.num_tokens} tokens though prefix caching is off")
    require(not request.skip_reading_prefix_cache, f"{request} asked not to read the cache and found {prefix.num_tokens} tokens")
    partial = {hit.group: hit for hit in prefix.partial_hits}
    require(not partial or manager.copies_blocks, "only a manager that declares copies_blocks may find parts of blocks")
    for group, table in zip(setup.groups, prefix.block_ids, strict=True):
        extra = partial[group.index].num_tokens if group.index in partial else 0
        require(
            0 <= extra < group.block_size and len(table) * group.block_size + extra == prefix.num_tokens,
            f"{len(table)} blocks of {group.block_size} and {extra} tokens of another do not make the {prefix.num_tokens} tokens "
            f"that {request} is said to find in group {group.index}",
        )


def check_reservation(manager: KVCacheManager, setup: KVCacheSetup, request: SimulatedRequest) -> None:
    """`reserve_whole_prompt` let the request start, so what its prompt lacks in groups that keep everything is still free."""
    tables = manager.block_ids(request.request_id)
    missing = sum(
        max(0, -(-request.num_prompt_tokens // group.block_size) - len(table))
        for group, table in zip(setup.groups, tables, strict=True)
        if group.kind == FULL
    )
    require(
        missing <= manager.num_free_blocks,
        f"reserve_whole_prompt let {request} start with {missing} blocks of its prompt still to come and "
        f"{manager.num_free_blocks} free ones",
    )


class BeforeRefusal:
    """All that can be seen of a manager before an allocation, to compare with if it is refused."""

    def __init__(
        self, manager: KVCacheManager, tables: RunnerTables, request: SimulatedRequest, probes: Sequence[SimulatedRequest]
    ) -> None:
        self._manager = manager
        self._tables = tables
        self._request = request
        self._waiting = [probe for probe in (*probes, request) if probe.request_id not in tables]
        self._held = tables.held()
        self._num_free = manager.num_free_blocks
        self._found = self._lookups()

    def _lookups(self) -> list[CachedPrefix]:
        return [self._manager.find_cached_prefix(probe) for probe in self._waiting]

    def check_unchanged(self) -> None:
        """A refused allocation may have given back out-of-window blocks of its own request, nothing else."""
        before = {block_id for tables in self._held.values() for table in tables for block_id in table if block_id != NULL_BLOCK_ID}
        given_back = len(before) - len(self._tables.count_holders())
        self._tables.check()
        for request_id, tables in self._tables.held().items():
            is_own = request_id == self._request.request_id
            require(is_own or tables == self._held[request_id], f"a refused allocation changed blocks of {request_id}")
        require(
            self._manager.num_free_blocks == self._num_free + given_back,
            f"a refused allocation changed the free blocks from {self._num_free} to {self._manager.num_free_blocks}",
        )
        require(self._lookups() == self._found, "a refused allocation changed what can be found")
