"""Block tables as a model runner keeps them: only ever appended to. Every growth is compared with what the manager says.

What this file does not know: memory, what is cached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from slotwise.interfaces.attention import FULL
from slotwise.interfaces.kv_cache import NULL_BLOCK_ID, Allocation, CachedPrefix, KVCacheManager, KVGroup
from slotwise.testing.verdicts import require

Table = tuple[tuple[int, ...], ...]
"""Per group, the block ids of one request."""


class RunnerTables:
    """Request id -> per group the blocks it was given, those that left a window included."""

    def __init__(self, manager: KVCacheManager, groups: Sequence[KVGroup]) -> None:
        self._manager = manager
        self._groups = groups
        self._given: dict[str, list[list[int]]] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._given

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def held(self) -> dict[str, Table]:
        """What the manager says each request holds now."""
        return {request_id: self._manager.block_ids(request_id) for request_id in self._given}

    def held_by(self, request_id: str) -> Table:
        """The same for one request."""
        return self._manager.block_ids(request_id)

    def drop(self, request_id: str) -> None:
        """The request gave its blocks back."""
        self._given.pop(request_id, None)
        rest = self._manager.block_ids(request_id)
        require(
            rest == ((),) * len(self._groups),
            f"block_ids of {request_id}, which holds nothing, must be one empty tuple per group, not {rest}",
        )

    def extend(self, request_id: str, allocation: Allocation, prefix: CachedPrefix | None, num_slots: int) -> None:
        """Append what the request gained, which must be enough for `num_slots` tokens and nobody else's."""
        is_first = request_id not in self._given
        tables = self._given.setdefault(request_id, [[] for _ in self._groups])
        known = self._manager.block_ids(request_id)
        require(
            len(allocation.new_block_ids) == len(known) == len(self._groups),
            f"allocate and block_ids must answer for each of the {len(self._groups)} groups: {allocation.new_block_ids}, {known}",
        )
        for group, table, gained in zip(self._groups, tables, allocation.new_block_ids, strict=True):
            hits = prefix.block_ids[group.index] if prefix is not None and is_first and prefix.num_tokens else ()
            require(
                gained[: len(hits)] == hits,
                f"the first allocation of {request_id} must begin with the blocks {hits} of its cached prefix, not {gained}",
            )
            self._check_fresh(request_id, gained[len(hits) :])
            table.extend(gained)
            self._check_table(request_id, group, table, known[group.index])
            require(
                len(table) * group.block_size >= num_slots,
                f"{request_id} needs slots for {num_slots} tokens, but its table in group {group.index} has {len(table)} blocks of "
                f"{group.block_size}",
            )

    def _check_fresh(self, request_id: str, fresh: Sequence[int]) -> None:
        usable = self._manager.num_usable_blocks
        counts = self.count_holders()
        for block_id in fresh:
            require(block_id != NULL_BLOCK_ID, f"{request_id} was given the null block, which is never allocated")
            require(0 < block_id <= usable, f"{request_id} was given block {block_id}; the pool has blocks 1 .. {usable}")
            require(
                counts[block_id] == 1,
                f"{request_id} was given block {block_id} as a new one, but {counts[block_id]} table entries hold it",
            )

    def _check_table(self, request_id: str, group: KVGroup, mine: Sequence[int], known: Sequence[int]) -> None:
        may_forget = group.kind != FULL
        same = len(mine) == len(known) and all(
            theirs == given or (may_forget and theirs == NULL_BLOCK_ID) for given, theirs in zip(mine, known, strict=True)
        )
        require(
            same,
            f"tables are only appended to, and entries only become null out of a window: {request_id} was given {list(mine)} in group "
            f"{group.index}, block_ids says {list(known)}",
        )

    def count_holders(self) -> Counter[int]:
        """Block id -> table entries of all requests and groups that hold it; the null block is not counted."""
        return Counter(block_id for tables in self.held().values() for table in tables for block_id in table if block_id != NULL_BLOCK_ID)

    def check(self) -> None:
        """Tables are as they were given; a block in several tables stands at one place in all of them; nothing is lost."""
        places: dict[int, set[tuple[int, int]]] = {}
        for request_id, known in self.held().items():
            for group, table in zip(self._groups, known, strict=True):
                self._check_table(request_id, group, self._given[request_id][group.index], table)
                for index, block_id in enumerate(table):
                    places.setdefault(block_id, set()).add((group.index, index))
        places.pop(NULL_BLOCK_ID, None)
        for block_id, where in places.items():
            require(len(where) == 1, f"block {block_id} stands at several (group, index) places: {sorted(where)}; only prefixes are shared")
        free, usable = self._manager.num_free_blocks, self._manager.num_usable_blocks
        require(free + len(places) == usable, f"{free} free blocks and {len(places)} held ones must make up the {usable} usable ones")

    def check_common_prefix(self) -> None:
        """`num_common_prefix_blocks` counts only blocks that stand in every table."""
        counts = self._manager.num_common_prefix_blocks(list(self._given))
        require(len(counts) == len(self._groups), f"num_common_prefix_blocks must answer for each group, not {counts}")
        held = self.held()
        for group, count in zip(self._groups, counts, strict=True):
            require(count >= 0 and (held or count == 0), f"{count} common blocks in group {group.index} though {len(held)} hold blocks")
            heads = {tables[group.index][:count] for tables in held.values()}
            is_common = count == 0 or (len(heads) == 1 and len(next(iter(heads))) == count)
            require(is_common, f"{count} leading blocks of group {group.index} are called common, but the tables begin with {heads}")
