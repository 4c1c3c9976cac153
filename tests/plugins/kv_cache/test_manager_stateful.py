"""Random traffic against a simulated memory, for every built-in manager under every built-in eviction policy and one that knows no order.

The machine plays scheduler and model: every position written leaves a mark that names all tokens (and keys) it depends on, and every
position a step would read must carry the mark of its own request. A stale hit, a shared block written, a block freed too early or
used twice all show up as a wrong mark.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slotwise.engine.request import Request
from slotwise.interfaces.eviction import CachedBlock, EvictionPolicy, EvictionSetup
from slotwise.interfaces.kv_cache import AllBlocksCleared, BlockCopy, BlockRemoved, BlockStored, ExtraKey, KVCacheSetup, KVGroup
from slotwise.sampling_params import SamplingParams
from slotwise_plugins.eviction.cost_aware import CostAwareEviction
from slotwise_plugins.eviction.lfu import LfuEviction
from slotwise_plugins.eviction.lru import LruEviction
from slotwise_plugins.kv_cache.hashing import SHA256, HashFunction
from slotwise_plugins.kv_cache.manager import PagedKVCacheManager
from slotwise_plugins.kv_cache.no_prefix import NoPrefixKVCacheManager
from slotwise_plugins.kv_cache.pooled_manager import PooledKVCacheManager
from slotwise_plugins.kv_cache.radix_manager import RadixKVCacheManager
from slotwise_plugins.kv_cache.radix_options import RadixOptions
from slotwise_plugins.kv_cache.radix_tree import RadixNode

WEAK_HASH = HashFunction(name="weak", digest=lambda data: bytes([sum(data) % 3]), is_proof=False)
MAX_MODEL_LEN = 40
MAX_STEP_TOKENS = 12
KINDS: list[dict[str, Any]] = [
    {"kind": "full"},
    {"kind": "sliding_window", "sliding_window": 1},
    {"kind": "sliding_window", "sliding_window": 6},
    {"kind": "chunked_local", "chunk_len": 6},
    {"kind": "chunked_local", "chunk_len": 8},
]
GARBAGE = "mark of a rejected draft"


class HeadFirstEviction(EvictionPolicy):
    """The worst order for a prefix cache: of a chain the first block goes first. Allowed, so it must cost hits and nothing else."""

    def __init__(self, setup: EvictionSetup) -> None:
        super().__init__(setup)
        self.ids: list[int] = []

    def add(self, block: CachedBlock) -> None:
        self.ids.append(block.block_id)

    def remove(self, block: CachedBlock) -> None:
        self.ids.remove(block.block_id)

    def pop_victim(self) -> int:
        return self.ids.pop()

    def clear(self) -> None:
        self.ids.clear()


POLICIES = [LruEviction, LfuEviction, CostAwareEviction, HeadFirstEviction]
KEYS = [
    [ExtraKey(source="cache_salt", value="x", num_tokens=1)],
    [ExtraKey(source="multimodal", value="image", first_token=3, num_tokens=2)],
]
prompts = st.tuples(st.integers(1, 20), st.lists(st.integers(0, 1), max_size=4), st.sampled_from([*KEYS, [], []]))


def first_visible(group: KVGroup, position: int) -> int:
    if group.sliding_window is not None:
        return max(0, position - group.sliding_window + 1)
    return position // group.chunk_len * group.chunk_len if group.chunk_len is not None else 0


class ManagerMachine(RuleBasedStateMachine):
    """Scheduler and model for one manager; subclasses make it."""

    finds_prefixes = True
    kinds = KINDS
    max_groups = 2
    block_sizes = (1, 2, 3, 4)

    def make(self, setup: KVCacheSetup, data: st.DataObject) -> PooledKVCacheManager:
        raise AssertionError("a subclass makes the manager")

    def findable_now(self) -> set[tuple[int, bytes]]:
        """(group, hash) of everything that can be found."""
        indexes = self.manager.pool.indexes
        return {(group, block_hash) for group, index in enumerate(indexes) for block_hash in index.hashes()}

    @initialize(
        data=st.data(),
        num_usable_blocks=st.integers(5, 20),
        enable_prefix_caching=st.sampled_from([True] * 7 + [False]),
        policy=st.sampled_from(POLICIES),
    )
    def build(self, data: st.DataObject, num_usable_blocks: int, enable_prefix_caching: bool, policy: type[EvictionPolicy]) -> None:
        specs = data.draw(
            st.lists(st.tuples(st.sampled_from(self.kinds), st.sampled_from(self.block_sizes)), min_size=1, max_size=self.max_groups)
        )
        self.groups = tuple(
            KVGroup(index=index, layer_names=(), block_size=size, bytes_per_block=1, **kind) for index, (kind, size) in enumerate(specs)
        )
        setup = KVCacheSetup(
            groups=self.groups,
            num_blocks=num_usable_blocks + 1,
            max_model_len=MAX_MODEL_LEN,
            enable_prefix_caching=enable_prefix_caching,
            hash_seed=b"",
            max_num_batched_tokens=MAX_STEP_TOKENS,
            enable_events=True,
            eviction=lambda num_blocks: policy(EvictionSetup(num_blocks=num_blocks)),
        )
        self.manager = self.make(setup, data)
        self.enable_prefix_caching = enable_prefix_caching and self.finds_prefixes
        self.longest = self.manager.max_request_tokens()
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.tables: dict[str, list[list[int]]] = {}
        self.memory: dict[tuple[int, int], object] = {}
        self.findable: set[tuple[int, bytes]] = set()
        self.num_arrivals = 0

    @rule(prompts=st.lists(prompts, min_size=1, max_size=4))
    def arrive(self, prompts: list[tuple[int, list[int], list[ExtraKey]]]) -> None:
        """Prompts share a stem, so that most of them are prefixes of each other for a while."""
        for stem_len, tail, keys in prompts:
            tokens = ([0] * stem_len + tail)[: self.longest]
            self.num_arrivals += 1
            request_id = f"r{self.num_arrivals}"
            params = SamplingParams(max_tokens=20)
            self.waiting.append(Request(request_id=request_id, prompt_token_ids=tokens, sampling_params=params, extra_keys=keys))

    @rule(data=st.data(), count=st.integers(0, 2))
    @precondition(lambda self: self.running or self.waiting)
    def abort(self, data: st.DataObject, count: int) -> None:
        if count:
            return
        request = data.draw(st.sampled_from(self.running + self.waiting))
        self.end(request)

    @rule(count=st.integers(0, 4))
    def reset(self, count: int) -> None:
        """Seldom, or there would be little to find."""
        if count:
            return
        nothing_held = self.manager.num_free_blocks == self.manager.num_usable_blocks
        assert self.manager.reset_prefix_cache() == nothing_held

    @rule(data=st.data(), num_steps=st.integers(1, 6), whole_prompt=st.booleans())
    @precondition(lambda self: self.running or self.waiting)
    def steps(self, data: st.DataObject, num_steps: int, whole_prompt: bool) -> None:
        for _ in range(num_steps):
            self.step(data, data.draw(st.integers(0, 19)) == 19, whole_prompt)

    def step(self, data: st.DataObject, step_fails: bool, whole_prompt: bool) -> None:
        self.scheduled: dict[str, tuple[Request, int, int]] = {}
        self.copies: list[BlockCopy] = []
        num_preempted = 0
        skipped = data.draw(st.sampled_from([None, None, None, *self.running]))
        for request in list(self.running):
            if request in self.running and request is not skipped:
                num_preempted += self.schedule_running(request, data)
        while self.waiting and not num_preempted and self.admit(self.waiting[0], data, whole_prompt):
            pass
        if step_fails:
            self.fail()
        else:
            self.execute(data)

    def draw_sizes(self, data: st.DataObject, num_missing: int) -> tuple[int, int]:
        num_tokens = data.draw(st.integers(1, min(num_missing, MAX_STEP_TOKENS)))
        return num_tokens, data.draw(st.integers(0, min(2, MAX_STEP_TOKENS - num_tokens)))

    def schedule_running(self, request: Request, data: st.DataObject) -> int:
        """How many were preempted for it. A victim may have been scheduled in this step, which is then undone."""
        num_tokens, num_lookahead = self.draw_sizes(data, request.num_tokens - request.num_computed_tokens)
        for num_preempted in range(len(self.running) + 1):
            allocation = self.manager.allocate(request, num_tokens, num_lookahead_tokens=num_lookahead)
            if allocation is None and self.running == [request]:
                num_lookahead = 0
                allocation = self.manager.allocate(request, num_tokens)
                assert allocation is not None, "a request alone in the pool must always go on"
            if allocation is not None:
                self.extend_table(request, allocation.new_block_ids)
                self.scheduled[request.request_id] = (request, num_tokens, num_lookahead)
                return num_preempted
            victim = data.draw(st.sampled_from(self.running))
            self.preempt(victim)
            if victim is request:
                return num_preempted + 1
        raise AssertionError("every request was preempted and there still was no room")

    def preempt(self, victim: Request) -> None:
        self.manager.free(victim)
        self.scheduled.pop(victim.request_id, None)
        self.running.remove(victim)
        self.tables.pop(victim.request_id, None)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.waiting.insert(0, victim)

    def admit(self, request: Request, data: st.DataObject, whole_prompt: bool) -> bool:
        prefix = self.manager.find_cached_prefix(request)
        assert prefix == self.manager.find_cached_prefix(request)
        assert prefix.num_tokens < request.num_tokens
        assert self.enable_prefix_caching or not prefix.num_tokens
        num_tokens, _ = self.draw_sizes(data, request.num_tokens - prefix.num_tokens)
        allocation = self.manager.allocate(request, num_tokens, cached_prefix=prefix, reserve_whole_prompt=whole_prompt)
        if allocation is None:
            assert self.running, "a request alone in the pool must always start"
            return False
        self.waiting.pop(0)
        self.running.append(request)
        self.extend_table(request, allocation.new_block_ids)
        for group, gained, hit in zip(self.groups, allocation.new_block_ids, prefix.block_ids, strict=True):
            assert gained[: len(hit)] == hit
            num_copied = sum(part.num_tokens for part in prefix.partial_hits if part.group == group.index)
            assert len(hit) * group.block_size + num_copied == prefix.num_tokens
            assert num_copied < group.block_size
        self.copies += allocation.block_copies
        request.num_computed_tokens = prefix.num_tokens
        self.scheduled[request.request_id] = (request, num_tokens, 0)
        return True

    def extend_table(self, request: Request, new_block_ids: tuple[tuple[int, ...], ...]) -> None:
        """The table as a model runner keeps it: only ever appended to."""
        tables = self.tables.setdefault(request.request_id, [[] for _ in self.groups])
        for table, new, known in zip(tables, new_block_ids, self.manager.block_ids(request.request_id), strict=True):
            table.extend(new)
            assert len(table) == len(known)
            assert all(block_id in (0, mine) for mine, block_id in zip(table, known, strict=True))

    def fail(self) -> None:
        """The step was scheduled, counted as computed, and its forward raised half-way: what it wrote is worthless, its requests end."""
        self.copy()
        for request, num_tokens, _ in self.scheduled.values():
            self.write(request, num_tokens, 0, mark=GARBAGE)
        for request, num_tokens, _ in self.scheduled.values():
            request.num_computed_tokens += num_tokens
            self.manager.evict_blocks(block_id for table in self.manager.block_ids(request.request_id) for block_id in table)
        for request, _, _ in self.scheduled.values():
            self.end(request)

    def end(self, request: Request) -> None:
        self.manager.free(request)
        self.tables.pop(request.request_id, None)
        queue = self.running if request in self.running else self.waiting
        queue.remove(request)

    def copy(self) -> None:
        """All sources are read before the first target is written."""
        read = [
            ((copy.target_block, offset), self.memory.get((copy.source_block, offset)))
            for copy in self.copies
            for offset in range(copy.num_tokens)
        ]
        assert len({copy.target_block for copy in self.copies}) == len(self.copies)
        assert all(self.manager.pool.blocks[copy.target_block].ref_count >= 1 for copy in self.copies)
        self.memory.update(read)

    def execute(self, data: st.DataObject) -> None:
        self.copy()
        for request, num_tokens, num_lookahead in self.scheduled.values():
            self.write(request, num_tokens, num_lookahead)
        for request, num_tokens, _ in self.scheduled.values():
            for position in {request.num_computed_tokens, request.num_computed_tokens + num_tokens - 1}:
                self.read(request, position)
        for request, num_tokens, _ in list(self.scheduled.values()):
            request.num_computed_tokens += num_tokens
            if request.num_computed_tokens == request.num_tokens:
                request.all_token_ids.append(data.draw(st.integers(0, 1)))
                if request.num_tokens > self.longest or data.draw(st.integers(0, 4)) == 0:
                    self.end(request)

    def mark(self, request: Request, position: int) -> object:
        return (tuple(request.all_token_ids[: position + 1]), tuple(key for key in request.extra_keys if key.first_token <= position))

    def write(self, request: Request, num_tokens: int, num_lookahead: int, mark: object = None) -> None:
        end = request.num_computed_tokens + num_tokens
        for group, table in zip(self.groups, self.tables[request.request_id], strict=True):
            for position in range(request.num_computed_tokens, min(end + num_lookahead, MAX_MODEL_LEN)):
                block_id = table[position // group.block_size]
                assert block_id != 0, "a null block would be written"
                assert self.manager.pool.blocks[block_id].ref_count == 1 or position < end, "lookahead into a shared block"
                slot = (block_id, position % group.block_size)
                assert self.is_writable(request, block_id), "a shared block would be overwritten"
                self.memory[slot] = (mark or self.mark(request, position)) if position < end else GARBAGE

    def is_writable(self, writer: Request, block_id: int) -> bool:
        """Held by the writer, and otherwise only by requests that hit it after it was registered in this very step."""
        order = list(self.scheduled)
        holders = [holder for holder in self.tables if any(block_id in table for table in self.manager.block_ids(holder))]
        return writer.request_id in holders and all(
            holder in order and order.index(holder) >= order.index(writer.request_id) for holder in holders
        )

    def read(self, request: Request, position: int) -> None:
        held = self.manager.block_ids(request.request_id)
        for group, table, still_held in zip(self.groups, self.tables[request.request_id], held, strict=True):
            for seen in range(first_visible(group, position), position + 1):
                block_id = table[seen // group.block_size]
                assert block_id == still_held[seen // group.block_size], "a block still in sight was given back"
                assert self.memory.get((block_id, seen % group.block_size)) == self.mark(request, seen)

    @invariant()
    def every_block_is_free_or_held_as_often_as_counted(self) -> None:
        held = [block_id for request_id in self.tables for table in self.manager.block_ids(request_id) for block_id in table if block_id]
        pool = self.manager.pool
        empty = [block.block_id for block in pool.empty_queue]
        idle = [block.block_id for block in pool.blocks[1:] if block.ref_count == 0 and block.block_hash is not None]
        assert sorted([*set(held), *empty, *idle]) == list(range(1, self.manager.num_usable_blocks + 1))
        assert len(empty) + len(idle) == self.manager.num_free_blocks
        assert len(idle) == pool.num_idle_blocks
        for block in pool.blocks[1:]:
            assert block.ref_count == held.count(block.block_id)

    @invariant()
    def findable_blocks_are_those_the_events_tell_of(self) -> None:
        for event in self.manager.take_events():
            if isinstance(event, BlockStored):
                new = {(event.group, block_hash) for block_hash in event.block_hashes}
                assert not new & self.findable
                self.findable |= new
            elif isinstance(event, BlockRemoved):
                gone = {(event.group, block_hash) for block_hash in event.block_hashes}
                assert gone <= self.findable
                self.findable -= gone
            else:
                assert isinstance(event, AllBlocksCleared)
                self.findable.clear()
        assert self.findable == self.findable_now()
        registered = {(block.group, block.block_hash) for block in self.manager.pool.blocks if block.block_hash is not None}
        assert registered == self.findable

    @invariant()
    def common_prefix_is_never_too_large(self) -> None:
        counts = self.manager.num_common_prefix_blocks(self.tables)
        for group, count in zip(self.groups, counts, strict=True):
            heads = {tuple(tables[group.index][:count]) for tables in self.tables.values()}
            assert count == 0 or len(heads) == 1

    def teardown(self) -> None:
        for request in [*self.running, *self.waiting]:
            self.manager.free(request)
        assert self.manager.num_free_blocks == self.manager.num_usable_blocks


class PagedMachine(ManagerMachine):
    def make(self, setup: KVCacheSetup, data: st.DataObject) -> PooledKVCacheManager:
        hash_function: HashFunction = data.draw(st.sampled_from([SHA256, WEAK_HASH]))
        return PagedKVCacheManager(setup, hash_function=hash_function)


class NoPrefixMachine(ManagerMachine):
    finds_prefixes = False

    def make(self, setup: KVCacheSetup, data: st.DataObject) -> PooledKVCacheManager:
        return NoPrefixKVCacheManager(setup)

    @invariant()
    def nothing_is_ever_counted_or_findable(self) -> None:
        stats = self.manager.take_stats()
        assert (stats.requests, stats.query_tokens, stats.hit_tokens, stats.preempted_requests) == (0, 0, 0, 0)
        assert not self.manager.pool.num_idle_blocks


class RadixMachine(ManagerMachine):
    kinds = KINDS[:1]
    max_groups = 1
    block_sizes = (4, 4, 3, 2, 1)

    def make(self, setup: KVCacheSetup, data: st.DataObject) -> PooledKVCacheManager:
        self.radix = RadixKVCacheManager(
            dataclasses.replace(setup, options=RadixOptions(min_copied_tokens=data.draw(st.sampled_from([1, 1, 1, 2, 4]))))
        )
        return self.radix

    def nodes(self) -> list[RadixNode]:
        found, to_visit = [], list(self.radix._tree._roots.values())
        while to_visit:
            node = to_visit.pop()
            found.append(node)
            to_visit += node.children.values()
        return found

    def findable_now(self) -> set[tuple[int, bytes]]:
        return {(0, node.block_hash) for node in self.nodes() if node.blocks}

    @invariant()
    def tree_holds_nothing_that_leads_nowhere(self) -> None:
        for node in self.nodes():
            assert node.is_attached
            assert node.blocks or node.children
            assert node.labels_in_order == sorted(label for label, child in node.children.items() if child.blocks)
            assert all(block.node is node and block.block_hash == node.block_hash for block in node.blocks)

    @invariant()
    def no_sibling_begins_with_another(self) -> None:
        for node in self.nodes():
            labels = node.labels_in_order
            assert not any(after[: len(before)] == before for before, after in itertools.pairwise(labels))

    @invariant()
    def no_content_is_kept_idle_twice(self) -> None:
        assert all(sum(block.ref_count == 0 for block in node.blocks) <= 1 for node in self.nodes())


TestPagedManager = PagedMachine.TestCase
TestRadixManager = RadixMachine.TestCase
TestNoPrefixManager = NoPrefixMachine.TestCase
TestPagedManager.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestRadixManager.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestNoPrefixManager.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
