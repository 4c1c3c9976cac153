"""What each eviction policy keeps and gives up, block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotwise.interfaces.eviction import CachedBlock, EvictionPolicy, EvictionSetup
from slotwise_plugins.eviction.cost_aware import CostAwareEviction
from slotwise_plugins.eviction.cost_aware_options import CostAwareOptions
from slotwise_plugins.eviction.ranked import RankedEviction

Make = Callable[..., Any]


def chain(block_type: Make, first_id: int, num_blocks: int, **fields: Any) -> list[Any]:
    """Blocks of one sequence, the first one first."""
    ids = range(first_id, first_id + num_blocks)
    return [
        block_type(
            block_id=block_id,
            block_hash=str(block_id).encode(),
            parent_hash=str(block_id - 1).encode() if block_id > first_id else None,
            first_token=16 * (block_id - first_id),
            **fields,
        )
        for block_id in ids
    ]


def give_back(policy: EvictionPolicy, blocks: Iterable[Any]) -> None:
    for block in reversed(list(blocks)):
        policy.add(block)


def drain(policy: EvictionPolicy, count: int) -> list[int]:
    return [policy.pop_victim() for _ in range(count)]


def test_of_a_chain_the_last_block_goes_first(any_policy: EvictionPolicy, block_type: Make) -> None:
    give_back(any_policy, chain(block_type, 1, 5))
    assert drain(any_policy, 5) == [5, 4, 3, 2, 1]


def test_without_hits_the_chain_given_back_first_goes_first(any_policy: EvictionPolicy, block_type: Make) -> None:
    first, second = chain(block_type, 1, 1), chain(block_type, 11, 1)
    give_back(any_policy, first)
    give_back(any_policy, second)
    assert drain(any_policy, 2) == [1, 11]


def test_a_removed_block_is_never_chosen_and_may_come_again(any_policy: EvictionPolicy, block_type: Make) -> None:
    blocks = chain(block_type, 1, 3)
    give_back(any_policy, blocks)
    any_policy.remove(blocks[2])
    assert any_policy.pop_victim() == 2
    any_policy.add(blocks[2])
    assert sorted(drain(any_policy, 2)) == [1, 3]


def test_nothing_is_left_after_clear(any_policy: EvictionPolicy, block_type: Make) -> None:
    give_back(any_policy, chain(block_type, 1, 3))
    any_policy.clear()
    give_back(any_policy, chain(block_type, 1, 2))
    assert drain(any_policy, 2) == [2, 1]


def test_lfu_keeps_what_was_hit_more_often(make_policy: Make, block_type: Make) -> None:
    policy = make_policy("lfu")
    for block_id, num_hits in ((1, 3), (2, 0), (3, 7), (4, 1)):
        policy.add(block_type(block_id=block_id, num_hits=num_hits, block_hash=str(block_id).encode()))
    assert drain(policy, 4) == [2, 4, 1, 3]


def test_lfu_lets_an_old_favourite_go_once_enough_has_come_and_gone(make_policy: Make, block_type: Make) -> None:
    policy = make_policy("lfu")
    policy.add(block_type(block_id=1, num_hits=4, block_hash=b"favourite"))
    victims = []
    for block_id in range(2, 10):
        policy.add(block_type(block_id=block_id, block_hash=str(block_id).encode()))
        victims.append(policy.pop_victim())
    assert victims == [2, 3, 4, 5, 1, 6, 7, 8], "the favourite's 5 uses are outweighed by the fifth victim"


def test_cost_aware_keeps_what_is_dearest_to_compute_again(make_policy: Make, block_type: Make) -> None:
    """At equal use: the deep one of two, and of two the one of fewer bytes."""
    policy = make_policy("cost_aware")
    policy.add(block_type(block_id=1, first_token=8000, block_hash=b"deep", parent_hash=b"x"))
    policy.add(block_type(block_id=2, first_token=0, block_hash=b"shallow"))
    policy.add(block_type(block_id=3, first_token=0, block_hash=b"big", num_bytes=64))
    policy.add(block_type(block_id=4, first_token=0, num_tokens=3, block_hash=b"half full"))
    assert drain(policy, 4) == [4, 3, 2, 1]


def test_cost_of_a_token_doubles_where_attention_equals_the_rest(make_policy: Make, block_type: Make) -> None:
    policy: CostAwareEviction = make_policy("cost_aware", CostAwareOptions(attention_equals_at=1000))
    assert policy.recompute_cost(block_type(block_id=1, first_token=1000, num_tokens=1)) == pytest.approx(2.0)
    assert policy.recompute_cost(block_type(block_id=1, first_token=0, num_tokens=1)) == pytest.approx(1.0)
    assert policy.recompute_cost(block_type(block_id=1, first_token=0, num_tokens=1001)) == pytest.approx(1001 * 1.5)


def test_a_block_is_worth_what_can_only_be_found_through_it(make_policy: Make, block_type: Make) -> None:
    """Where its own value is the lower one, as with a duplicate that was never hit itself."""
    policy = make_policy("lfu")
    policy.add(block_type(block_id=2, block_hash=b"child", parent_hash=b"parent", num_hits=9))
    policy.add(block_type(block_id=1, block_hash=b"parent", num_hits=0))
    policy.add(block_type(block_id=3, block_hash=b"other", num_hits=5))
    assert drain(policy, 3) == [3, 2, 1]


def test_groups_do_not_mix_their_chains(make_policy: Make, block_type: Make) -> None:
    policy = make_policy("lfu")
    policy.add(block_type(block_id=2, group=1, block_hash=b"child", parent_hash=b"parent", num_hits=9))
    policy.add(block_type(block_id=1, group=0, block_hash=b"parent", num_hits=0))
    assert drain(policy, 2) == [1, 2]


class CacheModel:
    """A tree of fan-out 3 and depth 4; requests use and give back paths of it, and victims are taken."""

    def __init__(self, policy: EvictionPolicy, block_type: Make) -> None:
        self.policy = policy
        self.block_type = block_type
        self.nodes: dict[bytes, Any] = {}
        self.cached: set[bytes] = set()
        self.holders: Counter[bytes] = Counter()
        self.held: list[list[bytes]] = []

    def use(self, leaf: int, depth: int) -> None:
        path = [f"{leaf // 3 ** (3 - level)}/{level}".encode() for level in range(depth)]
        for level, name in enumerate(path):
            if name not in self.nodes:
                parent = path[level - 1] if level else None
                block_id = len(self.nodes) + 1
                self.nodes[name] = self.block_type(block_id=block_id, block_hash=name, parent_hash=parent, first_token=16 * level)
            if name in self.cached and not self.holders[name]:
                self.policy.remove(self.nodes[name])
            self.nodes[name].num_hits = self.nodes[name].num_hits + 1 if name in self.cached else 0
            self.cached.add(name)
            self.holders[name] += 1
        self.held.append(path)

    def give_back(self, which: int) -> None:
        for name in reversed(self.held.pop(which % len(self.held)) if self.held else []):
            self.holders[name] -= 1
            if not self.holders[name]:
                self.policy.add(self.nodes[name])

    def evict(self) -> None:
        idle = {self.nodes[name].block_id: name for name in self.cached if not self.holders[name]}
        if idle:
            victim = idle[self.policy.pop_victim()]
            self.cached.remove(victim)
            assert not any(self.nodes[name].parent_hash == victim for name in self.cached)


@pytest.mark.parametrize("name", ["lru", "lfu", "cost_aware"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.sampled_from(["use", "use", "give back", "evict"]), st.integers(0, 26), st.integers(1, 4)), max_size=80))
def test_a_block_never_goes_before_one_that_continues_it(
    make_policy: Make, block_type: Make, name: str, steps: list[tuple[str, int, int]]
) -> None:
    model = CacheModel(make_policy(name), block_type)
    for operation, number, depth in steps:
        if operation == "use":
            model.use(number, depth)
        elif operation == "give back":
            model.give_back(number)
        else:
            model.evict()


class ByHits(RankedEviction):
    def gain(self, block: CachedBlock) -> float:
        return 1.0 + block.num_hits


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 5)), max_size=200))
def test_a_ranked_policy_gives_up_the_lowest_value_first(block_type: Make, steps: list[tuple[bool, int, int]]) -> None:
    policy, model = ByHits(EvictionSetup(num_blocks=10)), dict[int, tuple[float, int, Any]]()
    for arrival, (is_pop, block_id, num_hits) in enumerate(steps):
        if is_pop and model:
            expected = min(model, key=lambda key: model[key][:2])
            assert policy.pop_victim() == expected
            assert policy.age == model.pop(expected)[0]
        elif block_id in model:
            policy.remove(model.pop(block_id)[2])
        else:
            block = block_type(block_id=block_id, block_hash=bytes([block_id]), num_hits=num_hits)
            model[block_id] = (policy.age + 1.0 + num_hits, arrival, block)
            policy.add(block)


def test_blocks_that_come_and_go_leave_nothing_behind(block_type: Make) -> None:
    policy = ByHits(EvictionSetup(num_blocks=10))
    for number in range(1000):
        block = block_type(block_id=number % 7, block_hash=b"h", parent_hash=str(number).encode())
        policy.add(block)
        policy.remove(block)
    assert len(policy._heap) <= 64
    assert not policy._continuations
