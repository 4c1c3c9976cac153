"""`cost_aware`: the block whose loss costs least work per byte, weighted by how often it was of use, goes first."""

from __future__ import annotations

from slotwise.interfaces.eviction import CachedBlock, EvictionSetup
from slotwise_plugins.eviction.cost_aware_options import CostAwareOptions
from slotwise_plugins.eviction.ranked import RankedEviction


class CostAwareEviction(RankedEviction):
    """Value = age + uses * cost / size. Source: GreedyDual-Size-Frequency, Cherkasova, "Improving WWW proxies performance with
    GreedyDual-Size-Frequency caching policy", HP Laboratories HPL-98-69R1, 1998, section 3.

    Cost is the work of computing the block's tokens again, in tokens at the start of a sequence: a token at position p reads p tokens
    of context, which costs as much as the rest of its work when p is `attention_equals_at`.
    """

    def __init__(self, setup: EvictionSetup) -> None:
        super().__init__(setup)
        options = setup.options if isinstance(setup.options, CostAwareOptions) else CostAwareOptions()
        self._attention_equals_at = options.attention_equals_at

    def gain(self, block: CachedBlock) -> float:
        return (1.0 + block.num_hits) * self.recompute_cost(block) / max(1, block.num_bytes)

    def recompute_cost(self, block: CachedBlock) -> float:
        """Work to compute the block's tokens again, in tokens at the start of a sequence."""
        mean_context = block.first_token + (block.num_tokens - 1) / 2
        return block.num_tokens * (1.0 + mean_context / self._attention_equals_at)
