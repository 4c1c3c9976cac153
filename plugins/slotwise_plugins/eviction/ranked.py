"""Base of the policies that give up the block of the lowest value first: a heap, ageing, and chains kept in order.

    rank = (value, order of arrival)      value = max(own value, value of every idle block that continues it)

A block is worth no less than what can only be found through it. Since the manager hands a chain over from its end, a block arrives
after those that continue it: at equal value it goes after them.

What this file does not know: what makes a block valuable.
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from dataclasses import dataclass, field

from slotwise.interfaces.eviction import CachedBlock, EvictionPolicy, EvictionSetup

_Content = tuple[int, bytes]
"""Group and hash: what a block holds."""


@dataclass(order=True, slots=True)
class _Entry:
    value: float
    arrival: int
    block: CachedBlock = field(compare=False)
    is_removed: bool = field(default=False, compare=False)


@dataclass(slots=True)
class _Continuations:
    """Idle blocks that continue one content."""

    num_blocks: int = 0
    value: float = 0.0
    """Highest value among them since there were none."""


class RankedEviction(EvictionPolicy):
    """O(log n) per call, amortised: removed entries stay in the heap until they come up or outnumber the others.

    Ageing: `age` rises to the value of each victim, and values are reckoned from it, so that what was once valuable does not stay
    for ever. Source: GreedyDual (Young, "On-line caching as cache size varies", SODA 1991), with the inflation value L of Cao and Irani
    ("Cost-aware WWW proxy caching algorithms", USITS 1997, section 4).
    """

    def __init__(self, setup: EvictionSetup) -> None:
        super().__init__(setup)
        self.age = 0.0
        """Value of the last victim."""
        self._heap: list[_Entry] = []
        self._entries: dict[int, _Entry] = {}
        self._continuations: dict[_Content, _Continuations] = {}
        self._num_arrivals = 0

    @abstractmethod
    def gain(self, block: CachedBlock) -> float:
        """What keeping the block is worth, above the age of now; > 0."""

    def add(self, block: CachedBlock) -> None:
        assert block.block_hash is not None
        value = self.age + self.gain(block)
        if (continued := self._continuations.get((block.group, block.block_hash))) is not None:
            value = max(value, continued.value)
        self._num_arrivals += 1
        entry = self._entries[block.block_id] = _Entry(value, self._num_arrivals, block)
        heapq.heappush(self._heap, entry)
        if block.parent_hash is not None:
            siblings = self._continuations.setdefault((block.group, block.parent_hash), _Continuations())
            siblings.num_blocks += 1
            siblings.value = max(siblings.value, value)

    def remove(self, block: CachedBlock) -> None:
        entry = self._entries.pop(block.block_id)
        entry.is_removed = True
        self._leave_family(block)
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)

    def pop_victim(self) -> int:
        while (entry := heapq.heappop(self._heap)).is_removed:
            pass
        del self._entries[entry.block.block_id]
        self._leave_family(entry.block)
        self.age = entry.value
        return entry.block.block_id

    def clear(self) -> None:
        self.age = 0.0
        self._heap.clear()
        self._entries.clear()
        self._continuations.clear()

    def _leave_family(self, block: CachedBlock) -> None:
        if block.parent_hash is None:
            return
        content = (block.group, block.parent_hash)
        siblings = self._continuations[content]
        siblings.num_blocks -= 1
        if siblings.num_blocks == 0:
            del self._continuations[content]
