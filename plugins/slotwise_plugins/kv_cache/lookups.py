"""What belongs to lookups rather than to blocks: chains of requests that wait, and the count of hits.

What this file does not know: blocks, pools.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from slotwise.interfaces.kv_cache import CachedPrefix, KVRequest, PrefixCacheStats

MAX_WAITING_CHAINS = 1024
"""Chains kept for requests that hold no block yet; the oldest gives way and is hashed anew if its request is looked up again."""


class Chain(Protocol):
    """What lookups of one request are made with: a hash chain, or labels of a tree."""

    @property
    def request(self) -> KVRequest:
        """Whose tokens it stands for."""


ChainT = TypeVar("ChainT", bound=Chain)


class WaitingChains(Generic[ChainT]):
    """Chains of requests that were looked up and hold nothing, so that a request looked up every step is hashed once."""

    def __init__(self, make_chain: Callable[[KVRequest], ChainT]) -> None:
        self._make_chain = make_chain
        self._chains: dict[str, ChainT] = {}

    def __len__(self) -> int:
        return len(self._chains)

    def get(self, request: KVRequest) -> ChainT:
        """The request's chain. An id may come again with other tokens, so the request itself is compared."""
        chain = self._chains.get(request.request_id)
        if chain is None or chain.request is not request:
            chain = self._chains[request.request_id] = self._make_chain(request)
            if len(self._chains) > MAX_WAITING_CHAINS:
                del self._chains[next(iter(self._chains))]
        return chain

    def drop(self, request_id: str) -> None:
        """The request holds blocks now, or is gone."""
        self._chains.pop(request_id, None)


def count_lookup(stats: PrefixCacheStats, request: KVRequest, prefix: CachedPrefix) -> None:
    """Count a lookup that was used."""
    if request.num_preemptions:
        stats.preempted_requests += 1
        stats.preempted_query_tokens += request.num_tokens
        stats.preempted_hit_tokens += prefix.num_tokens
    else:
        stats.requests += 1
        stats.query_tokens += request.num_tokens
        stats.hit_tokens += prefix.num_tokens
