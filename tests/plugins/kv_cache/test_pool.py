"""The pool: what it tells the eviction policy, and that it does not trust the answer."""

from __future__ import annotations

import pytest

from slotwise.errors import ContractError
from slotwise.interfaces.eviction import CachedBlock, EvictionPolicy, EvictionSetup
from slotwise_plugins.kv_cache.block import KVBlock
from slotwise_plugins.kv_cache.pool import BlockPool


class RecordingPolicy(EvictionPolicy):
    """First in, first out, and remembers what it was told."""

    def __init__(self, setup: EvictionSetup) -> None:
        super().__init__(setup)
        self.told: list[tuple[str, int, int, int]] = []
        self.ids: list[int] = []

    def add(self, block: CachedBlock) -> None:
        self.told.append(("add", block.block_id, block.num_hits, block.last_use))
        self.ids.append(block.block_id)

    def remove(self, block: CachedBlock) -> None:
        assert block.block_hash is not None
        self.told.append(("remove", block.block_id, block.num_hits, block.last_use))
        self.ids.remove(block.block_id)

    def pop_victim(self) -> int:
        return self.ids.pop(0)

    def clear(self) -> None:
        self.ids.clear()


def cached(pool: BlockPool, count: int) -> list[KVBlock]:
    blocks = pool.take(count)
    for block in blocks:
        pool.register(block, 0, bytes([block.block_id]), None)
    return blocks


@pytest.fixture
def policy() -> RecordingPolicy:
    return RecordingPolicy(EvictionSetup(num_blocks=4))


@pytest.fixture
def pool(policy: RecordingPolicy) -> BlockPool:
    return BlockPool(5, 1, policy, record_events=True)


def test_the_policy_is_told_of_cached_blocks_alone_with_hits_and_last_use(pool: BlockPool, policy: RecordingPolicy) -> None:
    first, second = cached(pool, 2)
    pool.release([*pool.take(1), second, first])
    pool.touch([first])
    pool.release([first])
    assert policy.told == [("add", 2, 0, 1), ("add", 1, 0, 1), ("remove", 1, 0, 1), ("add", 1, 1, 3)]
    assert (len(pool.empty_queue), pool.num_idle_blocks, pool.num_free_blocks) == (2, 2, 4)


def test_empty_blocks_are_taken_before_the_policy_is_asked(pool: BlockPool) -> None:
    pool.release(cached(pool, 2))
    assert [block.block_id for block in pool.take(4)] == [3, 4, 1, 2]
    assert pool.num_free_blocks == 0


def test_an_evicted_idle_block_leaves_the_policy_and_is_taken_next(pool: BlockPool, policy: RecordingPolicy) -> None:
    blocks = cached(pool, 3)
    pool.release(blocks)
    pool.evict(blocks[1])
    assert policy.ids == [1, 3]
    assert pool.take(1) == [blocks[1]]


def test_a_held_block_that_was_forgotten_counts_its_hits_anew(pool: BlockPool, policy: RecordingPolicy) -> None:
    (block,) = cached(pool, 1)
    pool.touch([block])
    pool.evict(block)
    pool.register(block, 0, b"other", None)
    pool.release([block])
    pool.release([block])
    assert policy.told[-1][:3] == ("add", 1, 0)


@pytest.mark.parametrize("answer", [1, 4])
def test_a_victim_that_is_held_or_empty_is_an_error_that_names_the_policy(pool: BlockPool, policy: RecordingPolicy, answer: int) -> None:
    held, other, third = cached(pool, 3)
    pool.release([other])
    assert pool.take(1)[0].block_id == 4
    policy.pop_victim = lambda: answer  # type: ignore[method-assign]
    with pytest.raises(ContractError, match=rf"RecordingPolicy gave up block {answer}"):
        pool.take(1)
    assert held.ref_count == third.ref_count == 1
