"""The `kv_cache` slot: prefix lookup, allocation, eviction and free of KV blocks.

The manager owns the pool's bookkeeping, never the tensors. Block 0 is the null block: it is never allocated, its content never
matters, and it stands in block tables where a block was freed. A manager is called by the scheduler only, from one thread.

Protocol for one request: `find_cached_prefix` when it is admitted, then `allocate` before each step that computes tokens of it,
then `free` exactly once when it ends or is preempted (unknown requests are ignored).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from pydantic import BaseModel

    from slotwise.interfaces.eviction import EvictionFactory

NULL_BLOCK_ID = 0
"""The null block: never allocated, its content never matters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KVGroup:
    """Layers that share one block table. Every group takes its blocks from one pool."""

    index: int
    """Position among the groups, from 0."""
    layer_names: tuple[str, ...]
    """Names of the layers that share the table (`AttentionLayer.name`)."""
    kind: str = "full"
    """`full`, `sliding_window` or `chunked_local` (see `interfaces.attention`)."""
    sliding_window: int | None = None
    """Window in tokens, of a group of kind `sliding_window`."""
    chunk_len: int | None = None
    """Chunk in tokens, of a group of kind `chunked_local`."""
    block_size: int
    """Tokens per block."""
    bytes_per_block: int
    """Of one layer, K and V."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KVCacheSetup:
    """What a manager is made for."""

    groups: tuple[KVGroup, ...]
    """All groups, by index."""
    num_blocks: int
    """Blocks in the pool, the null block included."""
    max_model_len: int
    """Longest sequence, in tokens."""
    enable_prefix_caching: bool
    """False: nothing is ever found."""
    hash_seed: bytes
    """Start of every hash chain; random per process unless the configuration fixes it."""
    max_num_batched_tokens: int | None = None
    """Most tokens of one `allocate`, lookahead included; lets a manager count on windows in `max_request_tokens`. None = no bound known."""
    enable_events: bool = False
    """Whether `take_events` will be called every step; a manager records nothing otherwise."""
    options: BaseModel | None = None
    """The component's validated options model, or None if it declares none."""
    eviction: EvictionFactory | None = None
    """Makes the policy of the `eviction` slot that was chosen; None = the manager's own default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtraKey:
    """Something besides tokens that a block's content depends on. Typed, so that no two sources can alias."""

    source: str
    """`adapter`, `multimodal`, `cache_salt` or `prompt_embeds`."""
    value: str
    """What the content depends on, as text: an adapter's identity, a content hash, a salt."""
    first_token: int = 0
    """First position it applies to."""
    num_tokens: int | None = None
    """Positions it covers; None = to the end. A cache salt covers the first block only; the chain spreads it."""


class KVRequest(Protocol):
    """What a manager may know of a request. Read only; lives as long as the request."""

    @property
    def request_id(self) -> str:
        """Unique among requests in the engine."""

    @property
    def all_token_ids(self) -> Sequence[int]:
        """Prompt and output so far; only ever appended to."""

    @property
    def num_tokens(self) -> int:
        """len(all_token_ids)."""

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV exists or is being computed by steps scheduled before."""

    @property
    def extra_keys(self) -> Sequence[ExtraKey]:
        """What else its blocks depend on; never changes."""

    @property
    def skip_reading_prefix_cache(self) -> bool:
        """True: `find_cached_prefix` yields nothing; its blocks still become findable."""

    @property
    def num_preemptions(self) -> int:
        """How often it was preempted; statistics count such lookups apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartialHit:
    """The start of a block that can be had by copying it: the request cannot share the block, since it writes on behind them."""

    group: int
    """Index of the KV group."""
    source_block: int
    """The block that holds them."""
    num_tokens: int
    """Leading tokens of the block that are the request's own; 1 or more, fewer than a block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockCopy:
    """A copy of KV between two blocks of a group, in all its layers.

    All copies of a step are carried out before its forward, and all their sources are read before the first target is written; so a
    source need not be held, and may even be another copy's target.
    """

    group: int
    """Index of the KV group."""
    source_block: int
    """Block to read; computed by earlier steps."""
    target_block: int
    """Block to write, the same positions; held by one request alone."""
    num_tokens: int
    """Leading tokens of the block to copy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedPrefix:
    """Result of a prefix lookup. Holding it reserves nothing: pass it to the next `allocate` of the request."""

    num_tokens: int
    """Tokens that need not be computed: whole blocks, and those of `partial_hits`."""
    block_ids: tuple[tuple[int, ...], ...]
    """Per group, whole blocks; null entries where a block is out of the window."""
    partial_hits: tuple[PartialHit, ...] = ()
    """At most one per group: what the block after `block_ids` can start with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """Blocks a request gained."""

    new_block_ids: tuple[tuple[int, ...], ...]
    """Per group, to be appended to its block table; includes the cached prefix's blocks on the first call."""
    block_copies: tuple[BlockCopy, ...] = ()
    """To be carried out before the next forward; only a manager that declares `copies_blocks` asks for any."""


@dataclass(kw_only=True, slots=True)
class PrefixCacheStats:
    """Counted since the last `take_stats`."""

    requests: int = 0
    """Lookups that were used, of requests never preempted."""
    query_tokens: int = 0
    """Tokens those lookups asked for."""
    hit_tokens: int = 0
    """Tokens they found."""
    preempted_requests: int = 0
    """Like `requests`, of preempted ones."""
    preempted_query_tokens: int = 0
    """Like `query_tokens`, of preempted ones."""
    preempted_hit_tokens: int = 0
    """Like `hit_tokens`, of preempted ones."""
    was_reset: bool = False
    """The cache was cleared in between."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockStored:
    """Blocks became findable."""

    block_hashes: tuple[bytes, ...]
    """Hashes of the blocks, in order of position."""
    parent_hash: bytes | None
    """Hash of the block before the first one; None at the start of a sequence."""
    token_ids: tuple[int, ...]
    """Tokens of all the blocks, in order."""
    block_size: int
    """Tokens in each of the blocks; fewer than the group's for a block stored before it was full."""
    group: int
    """Index of the KV group."""
    block_ids: tuple[int, ...] = ()
    """Their places in the pool, in the same order."""
    extra_keys: tuple[tuple[ExtraKey, ...], ...] = ()
    """Per block, what else its content depends on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRemoved:
    """Blocks can no longer be found."""

    block_hashes: tuple[bytes, ...]
    """Hashes that no longer lead anywhere."""
    group: int
    """Index of the KV group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AllBlocksCleared:
    """Nothing can be found any more."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared
"""What `take_events` yields."""


class KVCacheManager(ABC):
    """Base of KV cache managers."""

    copies_blocks: ClassVar[bool] = False
    """Whether its allocations may carry `block_copies`. The engine then refuses KV layouts of a backend's own, which it cannot copy."""

    def __init__(self, setup: KVCacheSetup) -> None:
        self.setup = setup

    @abstractmethod
    def find_cached_prefix(self, request: KVRequest) -> CachedPrefix:
        """Longest usable cached prefix, at most num_tokens - 1 tokens (the last one must be recomputed for its logits).

        Called when a waiting request is considered, so possibly several times; changes nothing but statistics, which are counted by
        `allocate` when the prefix is used.
        """

    @abstractmethod
    def allocate(
        self,
        request: KVRequest,
        num_new_tokens: int,
        *,
        cached_prefix: CachedPrefix | None = None,
        num_lookahead_tokens: int = 0,
        reserve_whole_prompt: bool = False,
    ) -> Allocation | None:
        """Make room for `num_new_tokens` more tokens of `request` (after its computed ones and `cached_prefix`).

        None = it does not fit now, and nothing changed except that out-of-window blocks may have been freed. Lookahead tokens
        get slots but are never findable. With `reserve_whole_prompt` it succeeds only if the whole prompt would fit now.
        Full blocks become findable at once: a failed step must call `evict_blocks`. Raises ValueError if num_new_tokens < 1.
        """

    @abstractmethod
    def free(self, request: KVRequest) -> None:
        """Give back all blocks of a request, so that later blocks of the chain are evicted before earlier ones.

        Called before the request's `num_computed_tokens` is reset: blocks that an undone step would have filled, beyond that
        count, must not stay findable.
        """

    @abstractmethod
    def block_ids(self, request_id: str) -> tuple[tuple[int, ...], ...]:
        """Per group the request's block table; empty tuples if it holds nothing."""

    @abstractmethod
    def num_common_prefix_blocks(self, request_ids: Iterable[str]) -> tuple[int, ...]:
        """Per group, leading blocks shared by all requests that hold blocks; may be too small, never too large."""

    @property
    @abstractmethod
    def num_free_blocks(self) -> int:
        """Blocks that an allocation could take now, cached but unused ones included."""

    @property
    @abstractmethod
    def num_usable_blocks(self) -> int:
        """Blocks of the pool without the null block: `num_free_blocks` when nothing runs."""

    @abstractmethod
    def max_request_tokens(self) -> int:
        """Largest sequence one request alone can ever hold in this pool, in tokens."""

    def reset_prefix_cache(self) -> bool:
        """Forget every cached block. False, and nothing changed, while a request holds blocks."""
        return True

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Make these blocks unfindable; their holders keep them. Called for the blocks of a failed step."""

    def take_events(self) -> Sequence[KVEvent]:
        """Events since the last call, in order. Called once a step when somebody listens."""
        return ()

    def take_stats(self) -> PrefixCacheStats:
        """Statistics since the last call."""
        return PrefixCacheStats()
