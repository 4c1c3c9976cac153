"""The `eviction` slot: which cached block that nobody holds is given up next.

A KV cache manager keeps blocks of ended requests findable as long as it can. When an allocation needs a block and no empty one is left,
the policy names the victim. Blocks without findable content are no business of the policy: they go first, without asking.

A prefix can only be hit from its start, so a block is worthless once the block before it is gone. The manager hands the blocks of
one chain over from the last to the first, and a policy should keep that order where its own measure calls two blocks equal, and should
not give up a block before one that continues it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True, kw_only=True, slots=True)
class EvictionSetup:
    """What a policy is made for."""

    num_blocks: int
    """Usable blocks of the pool: the most a policy ever has to rank."""
    options: BaseModel | None = None
    """The component's validated options model, or None if it declares none."""


class CachedBlock(Protocol):
    """What a policy may know of a block. Read only; the values stand still from `add` to `remove` or `pop_victim`."""

    @property
    def block_id(self) -> int:
        """Place in the pool, from 1; at most one block of that id is with the policy at a time."""

    @property
    def group(self) -> int:
        """Index of the KV group the content belongs to."""

    @property
    def block_hash(self) -> bytes | None:
        """Names the content and all before it, within the group. Several blocks may have one; never None while the policy has the block."""

    @property
    def parent_hash(self) -> bytes | None:
        """`block_hash` of the block before it in its chain; None at the start of a sequence."""

    @property
    def first_token(self) -> int:
        """Position of its first token in the sequence: how deep in the chain it stands, in tokens."""

    @property
    def num_tokens(self) -> int:
        """Tokens cached in it."""

    @property
    def num_bytes(self) -> int:
        """Memory it occupies over all layers of its group, in bytes."""

    @property
    def num_hits(self) -> int:
        """How often a request was spared computing it since its content was stored."""

    @property
    def last_use(self) -> int:
        """Count of the pool's uses when it was last taken or given back; larger is later. Blocks given back together share it."""


class EvictionPolicy(ABC):
    """Base of eviction policies. Called from the scheduler's thread only, once per block, so each call must be O(1) or O(log n)."""

    def __init__(self, setup: EvictionSetup) -> None:
        self.setup = setup

    @abstractmethod
    def add(self, block: CachedBlock) -> None:
        """`block` is findable and nobody holds it any more: it may be chosen from now on."""

    @abstractmethod
    def remove(self, block: CachedBlock) -> None:
        """`block`, added before, is held again or no longer findable: it must not be chosen."""

    @abstractmethod
    def pop_victim(self) -> int:
        """Id of the block to give up now; the policy forgets it. Called only while there is one."""

    @abstractmethod
    def clear(self) -> None:
        """Forget every block: the cache was cleared."""


EvictionFactory = Callable[[int], EvictionPolicy]
"""Makes a policy with nothing in it, for a pool of that many usable blocks."""
