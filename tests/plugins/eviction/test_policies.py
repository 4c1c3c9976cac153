"""What each eviction policy keeps and gives up, block by block."""

from __future__ import annotations

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


operations = st.lists(st.tuples(st.sampled_from(["use", "use", "use", "give_back", "evict"]), st.integers(0, 11), st.integers(1, 4)), max_size=80)
NUM_LEAVES = 12


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations)
def test_a_block_never_goes_before_one_that_continues_it(any_policy: EvictionPolicy, block_type: Make, steps: list[tuple[str, int, int]]) -> None:
    """A tree of fan-out 3 and depth 4, from which requests use and give back paths, and from which victims are taken."""
    any_policy.clear()
    nodes: dict[bytes, Any] = {}
    cached: set[bytes] = set()
    holders: dict[bytes, int] = {}
    held: list[list[bytes]] = []
    for operation, leaf, depth in steps:
        if operation == "use":
            path = [f"{leaf // 3 ** (3 - level)}/{level}".encode() for level in range(depth)]
            for level, name in enumerate(path):
                node = nodes.setdefault(
                    name,
                    block_type(block_id=len(nodes) + 1, block_hash=name, parent_hash=path[level - 1] if level else None, first_token=16 * level),
                )
                if name in cached and not holders.get(name):
                    any_policy.remove(node)
                node.num_hits = node.num_hits + 1 if name in cached else 0
                cached.add(name)
                holders[name] = holders.get(name, 0) + 1
            held.append(path)
        elif operation == "give_back" and held:
            for name in reversed(held.pop(leaf % len(held))):
                holders[name] -= 1
                if not holders[name]:
                    any_policy.add(nodes[name])
        elif operation == "evict" and any(not holders[name] for name in cached):
            victim = any_policy.pop_victim()
            (name,) = [name for name in cached if nodes[name].block_id == victim]
            assert not holders[name]
            cached.remove(name)
            assert not any(nodes[other].parent_hash == name for other in cached)


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
