"""What a step of running decodes costs, in function calls: linear in what runs, blind to what waits and to how long contexts are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from slotwise_contrib.bench.engine_rig import EngineRig

BLOCK_SIZE = 4
Count = Callable[[EngineRig, int], Any]
NOISE = 8
"""Calls that the garbage collector and other threads make now and then."""
STATIC_POLICIES = ["fcfs", "priority", "shortest_first"]


@pytest.mark.parametrize("policy", STATIC_POLICIES)
@pytest.mark.parametrize("kv_cache", ["paged", "no_prefix"])
def test_calls_grow_by_the_same_number_for_each_further_running_request(
    make_rig: Any, count_steps: Count, policy: str, kv_cache: str
) -> None:
    few, more, most = (count_steps(make_rig(size, policy=policy, kv_cache=kv_cache), BLOCK_SIZE).total for size in (8, 16, 24))
    assert most > more > few
    assert abs((more - few) - (most - more)) <= NOISE


@pytest.mark.parametrize("policy", STATIC_POLICIES)
def test_calls_do_not_depend_on_how_many_wait(make_rig: Any, count_steps: Count, policy: str) -> None:
    totals = []
    for num_waiting in (1, 10, 300):
        rig = make_rig(policy=policy)
        rig.set_waiting(num_waiting)
        rig.step()
        totals.append(count_steps(rig, BLOCK_SIZE).total)
    assert max(totals) - min(totals) <= NOISE


def test_calls_do_not_depend_on_the_context_length(make_rig: Any, count_steps: Count) -> None:
    assert count_steps(make_rig(context_len=16), BLOCK_SIZE).calls == count_steps(make_rig(context_len=1024), BLOCK_SIZE).calls


def test_nothing_of_a_waiting_request_is_asked_while_all_seats_are_taken(make_rig: Any, count_steps: Count) -> None:
    rig = make_rig()
    rig.set_waiting(50)
    calls = count_steps(rig, BLOCK_SIZE).calls
    assert calls["FcfsScheduler.order_key"] == 0
    assert calls["PagedKVCacheManager.find_cached_prefix"] == 0


def test_only_the_head_is_looked_up_while_blocks_are_short(make_rig: Any, monkeypatch: pytest.MonkeyPatch, count_steps: Count) -> None:
    rig = make_rig()
    monkeypatch.setattr(rig.scheduler, "limits", dataclasses.replace(rig.scheduler.limits, max_num_seqs=100))
    rig.kv_cache.pool.take(rig.kv_cache.num_free_blocks - rig.settings.num_running // BLOCK_SIZE)  # as many as this step needs
    rig.set_waiting(50)
    calls = count_steps(rig, 1).calls
    assert calls["PagedKVCacheManager.find_cached_prefix"] == 1
    assert calls["FcfsScheduler.order_key"] == 0
    assert (len(rig.scheduler.running), rig.scheduler.num_waiting) == (rig.settings.num_running, 50)


def test_a_block_is_hashed_once_when_it_is_full(make_rig: Any, count_steps: Count) -> None:
    """Prompt lengths are staggered: in `BLOCK_SIZE` steps each request fills one block."""
    rig = make_rig(8)
    assert count_steps(rig, BLOCK_SIZE).calls["BlockHasher.encode"] == 8


def test_only_requests_that_gain_a_block_get_a_record_of_it(make_rig: Any, count_steps: Count) -> None:
    rig = make_rig(8)
    calls = count_steps(rig, BLOCK_SIZE).calls
    assert calls["PooledKVCacheManager.allocate"] == 8 * BLOCK_SIZE
    assert calls["PooledKVCacheManager._take"] == 8
    gained = rig.scheduler.schedule().scheduled_cached_requests.new_block_ids
    assert sum(ids is not None for ids in gained) == 8 // BLOCK_SIZE


def test_one_new_token_asks_the_policy_nothing(make_rig: Any, count_steps: Count) -> None:
    calls = count_steps(make_rig(8), BLOCK_SIZE).calls
    assert [name for name in calls if name.startswith(("FcfsScheduler.", "BudgetSharingScheduler.", "Scheduler._state"))] == []


def test_each_running_request_costs_few_calls(make_rig: Any, count_steps: Count) -> None:
    """A budget, so that nobody doubles the cost of the decode path unseen: calls of Python and C functions, schedule to output."""
    few, more = (count_steps(make_rig(size, block_size=16, context_len=32), 16).total for size in (16, 32))
    assert (more - few) / (16 * 16) < 40
