"""`lfu`: the block that was hit least often goes first, with ageing, so that yesterday's favourites make room."""

from __future__ import annotations

from slotwise.interfaces.eviction import CachedBlock
from slotwise_plugins.eviction.ranked import RankedEviction


class LfuEviction(RankedEviction):
    """Value = age + number of uses. Source: LFU with dynamic aging, Arlitt, Cherkasova, Dilley, Friedrich, Jin, "Evaluating content
    management techniques for web proxy caches", SIGMETRICS Performance Evaluation Review 27(4), 2000, section 4."""

    def gain(self, block: CachedBlock) -> float:
        return 1.0 + block.num_hits
