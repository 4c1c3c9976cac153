"""`ExpectedStats`: the lookups that were used, counted beside the manager."""

from __future__ import annotations

import dataclasses

from slotwise.interfaces.kv_cache import CachedPrefix, PrefixCacheStats
from slotwise.testing.simulated_request import SimulatedRequest
from slotwise.testing.verdicts import require


class ExpectedStats:
    """What `take_stats` should say. A manager that never finds anything may as well count nothing."""

    def __init__(self, enable_prefix_caching: bool) -> None:
        self._is_counting = enable_prefix_caching
        self._expected = PrefixCacheStats()
        self._has_ever_hit = False
        self.was_reset = False
        """`reset_prefix_cache` succeeded since the last check."""

    def count(self, request: SimulatedRequest, prefix: CachedPrefix) -> None:
        """A lookup was used by an allocation."""
        if not self._is_counting or request.skip_reading_prefix_cache:
            return
        self._has_ever_hit |= prefix.num_tokens > 0
        stats = self._expected
        if request.num_preemptions:
            stats.preempted_requests += 1
            stats.preempted_query_tokens += request.num_tokens
            stats.preempted_hit_tokens += prefix.num_tokens
        else:
            stats.requests += 1
            stats.query_tokens += request.num_tokens
            stats.hit_tokens += prefix.num_tokens

    def check(self, stats: PrefixCacheStats) -> None:
        """Compare with what was counted since the last check, and begin anew."""
        expected, self._expected = self._expected, PrefixCacheStats()
        was_reset, self.was_reset = self.was_reset, False
        require(was_reset or not stats.was_reset, "take_stats says the cache was reset, which it was not")
        if not self._has_ever_hit and dataclasses.replace(stats, was_reset=False) == PrefixCacheStats():
            return
        expected.was_reset = was_reset
        require(stats == expected, f"take_stats says {stats}, what was used since the last call makes {expected}")
