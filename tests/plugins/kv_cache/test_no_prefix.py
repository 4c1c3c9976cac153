"""The `no_prefix` manager: blocks in, blocks out, nothing kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slotwise.engine.request import Request
from slotwise.interfaces.kv_cache import CachedPrefix, PrefixCacheStats
from slotwise_plugins.kv_cache.no_prefix import NoPrefixKVCacheManager

Make = Callable[..., Any]
Compute = Callable[[NoPrefixKVCacheManager, Request], int]


def test_nothing_is_found_counted_told_or_kept(make_no_prefix: Make, make_request: Make, compute: Compute) -> None:
    manager = make_no_prefix(enable_events=True)
    for number in range(3):
        request = make_request(f"r{number}", range(9))
        assert compute(manager, request) == 0
        assert manager.num_free_blocks == manager.num_usable_blocks - 3
        manager.free(request)
    assert manager.take_stats() == PrefixCacheStats()
    assert manager.take_events() == []
    assert manager.pool.num_idle_blocks == 0


def test_window_blocks_are_given_back_as_soon_as_no_token_sees_them(make_no_prefix: Make, make_group: Make, make_request: Make) -> None:
    manager = make_no_prefix(make_group(kind="sliding_window", sliding_window=6, block_size=2))
    request = make_request("a", range(11))
    manager.allocate(request, 10)
    request.num_computed_tokens = 10
    manager.allocate(request, 1)
    assert manager.block_ids("a")[0][:3] == (0, 0, 3)


def test_refuses_a_prefix_it_never_promised(make_no_prefix: Make, make_request: Make) -> None:
    with pytest.raises(ValueError, match="finds no cached prefixes"):
        make_no_prefix().allocate(make_request("a", range(9)), 5, cached_prefix=CachedPrefix(num_tokens=4, block_ids=((1,),)))
