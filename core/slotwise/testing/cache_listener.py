"""`CacheListener`: rebuilds what can be found from the KV events alone, as a router in another process would.

What this file does not know: the manager; it is told events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slotwise.interfaces.kv_cache import AllBlocksCleared, BlockRemoved, BlockStored, ExtraKey, KVEvent, KVRequest
from slotwise.testing.verdicts import ConformanceError, require


@dataclass(frozen=True, slots=True)
class _Block:
    parent: bytes | None
    token_ids: tuple[int, ...]
    extra_keys: frozenset[ExtraKey]


class CacheListener:
    """(group, hash) -> what the block holds."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, bytes], _Block] = {}

    def observe(self, events: Iterable[KVEvent]) -> None:
        """Take in the events of one step. Raises ConformanceError for one that cannot be true."""
        for event in events:
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                self._remove(event)
            elif isinstance(event, AllBlocksCleared):
                self._blocks.clear()
            else:
                raise ConformanceError(f"take_events yields BlockStored, BlockRemoved and AllBlocksCleared, not {event!r}")

    def _store(self, event: BlockStored) -> None:
        size, num_blocks = event.block_size, len(event.block_hashes)
        require(
            num_blocks > 0 and len(event.token_ids) == num_blocks * size,
            f"a BlockStored of {num_blocks} blocks of {size} tokens carries {len(event.token_ids)} token ids",
        )
        require(len(event.extra_keys) in (0, num_blocks), f"a BlockStored of {num_blocks} blocks carries keys of {len(event.extra_keys)}")
        parent = event.parent_hash
        for index, block_hash in enumerate(event.block_hashes):
            key = (event.group, block_hash)
            require(key not in self._blocks, f"BlockStored tells of block {block_hash.hex()[:8]}, which could be found already")
            keys = frozenset(event.extra_keys[index]) if event.extra_keys else frozenset()
            self._blocks[key] = _Block(parent, event.token_ids[index * size : (index + 1) * size], keys)
            parent = block_hash

    def _remove(self, event: BlockRemoved) -> None:
        for block_hash in event.block_hashes:
            found = self._blocks.pop((event.group, block_hash), None)
            require(found is not None, f"BlockRemoved tells of block {block_hash.hex()[:8]}, which could not be found")

    def num_findable_tokens(self, request: KVRequest, group: int, block_size: int) -> int:
        """Tokens of the request in whole cached blocks from the start, its last token left out."""
        children: dict[bytes | None, list[tuple[bytes, _Block]]] = {}
        for (owner, block_hash), block in self._blocks.items():
            if owner == group:
                children.setdefault(block.parent, []).append((block_hash, block))
        parent: bytes | None = None
        for start in range(0, (request.num_tokens - 1) // block_size * block_size, block_size):
            wanted = tuple(request.all_token_ids[start : start + block_size])
            keys = _keys_within(request.extra_keys, start, start + block_size)
            matching = [name for name, block in children.get(parent, ()) if (block.token_ids, block.extra_keys) == (wanted, keys)]
            if not matching:
                return start
            parent = matching[0]
        return (request.num_tokens - 1) // block_size * block_size


def _keys_within(keys: Sequence[ExtraKey], start: int, end: int) -> frozenset[ExtraKey]:
    return frozenset(key for key in keys if key.first_token < end and (key.num_tokens is None or key.first_token + key.num_tokens > start))
