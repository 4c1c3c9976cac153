"""Blocks and policies for the tests of the eviction slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from slotwise.interfaces.eviction import EvictionPolicy, EvictionSetup
from slotwise_plugins.eviction.cost_aware import CostAwareEviction
from slotwise_plugins.eviction.lfu import LfuEviction
from slotwise_plugins.eviction.lru import LruEviction

POLICIES: dict[str, type[EvictionPolicy]] = {"lru": LruEviction, "lfu": LfuEviction, "cost_aware": CostAwareEviction}
MakePolicy = Callable[..., EvictionPolicy]


@dataclass(kw_only=True)
class Block:
    """A `CachedBlock`."""

    block_id: int
    group: int = 0
    block_hash: bytes | None = b""
    parent_hash: bytes | None = None
    first_token: int = 0
    num_tokens: int = 16
    num_bytes: int = 16
    num_hits: int = 0
    last_use: int = 0


@pytest.fixture(scope="session")
def block_type() -> type[Block]:
    return Block


@pytest.fixture(params=list(POLICIES))
def any_policy(request: pytest.FixtureRequest) -> EvictionPolicy:
    """Each built-in policy, with nothing in it."""
    return POLICIES[request.param](EvictionSetup(num_blocks=100))


@pytest.fixture
def make_policy() -> MakePolicy:
    def make(name: str, options: BaseModel | None = None, **fields: Any) -> EvictionPolicy:
        return POLICIES[name](EvictionSetup(num_blocks=100, options=options, **fields))

    return make
