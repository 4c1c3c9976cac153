"""A KV cache without tensors: each slot remembers what was really written there.

Content ids stand for K and V: two positions have one id if and only if their requests have the same tokens up to there, and the same
extra keys from any position up to there. A stale hit, a shared block written, a block freed too early or used twice all show up
as a wrong id.
"""

from __future__ import annotations

from collections.abc import Sequence

from slotwise.interfaces.kv_cache import ExtraKey, KVGroup
from slotwise.testing.simulated_request import SimulatedRequest

GARBAGE = -1
"""Content of a slot that was written for a token nobody accepted, or by a step that failed."""
_Link = tuple[int, int, frozenset[tuple[str, str]]]


class ContentIds:
    """Names what K and V of a position depend on."""

    def __init__(self) -> None:
        self._ids: dict[_Link, int] = {}
        self._of_request: dict[str, list[int]] = {}

    def at(self, request: SimulatedRequest, position: int) -> int:
        """Content of one position, whose token is known."""
        known = self._of_request.setdefault(request.request_id, [])
        for place in range(len(known), position + 1):
            parent = known[-1] if known else GARBAGE
            keys = frozenset(_identity(key) for key in request.extra_keys if key.first_token == place)
            known.append(self._ids.setdefault((parent, request.all_token_ids[place], keys), len(self._ids)))
        return known[position]


def _identity(key: ExtraKey) -> tuple[str, str]:
    return key.source, key.value


class SimulatedMemory:
    """Block id and offset -> which group wrote which content there."""

    def __init__(self) -> None:
        self._slots: dict[tuple[int, int], tuple[int, int]] = {}

    def write(self, group: KVGroup, block_id: int, position: int, content: int) -> None:
        """K and V of one position."""
        self._slots[block_id, position % group.block_size] = (group.index, content)

    def read(self, group: KVGroup, block_id: int, position: int) -> int | None:
        """The content that `group` finds for one position; None if it never wrote there."""
        writer, content = self._slots.get((block_id, position % group.block_size), (group.index, None))
        return content if writer == group.index else None

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """(source block, target block, leading slots) of each copy; every source is read before the first target is written."""
        read = [(target, offset, self._slots.get((source, offset))) for source, target, num in copies for offset in range(num)]
        for target, offset, found in read:
            if found is None:
                self._slots.pop((target, offset), None)
            else:
                self._slots[target, offset] = found

    def spoil(self, block_id: int, num_tokens: int) -> None:
        """Nobody knows any more what the first slots of a block hold."""
        for offset in range(num_tokens):
            self._slots.pop((block_id, offset), None)


def first_visible(group: KVGroup, position: int) -> int:
    """First position that the token at `position` sees in the layers of `group`."""
    if group.sliding_window is not None:
        return max(0, position - group.sliding_window + 1)
    return position // group.chunk_len * group.chunk_len if group.chunk_len is not None else 0
