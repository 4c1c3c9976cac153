"""`KVCacheMachine`: random traffic through one KV cache manager.

Chance decides what arrives, how long chunks are, who is aborted or preempted, which steps fail, what is drafted and evicted. What must
hold is not said here: the simulation checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from slotwise.interfaces.attention import FULL
from slotwise.interfaces.kv_cache import KVCacheManager, KVCacheSetup, KVGroup
from slotwise.testing.kv_simulation import KVSimulation
from slotwise.testing.kv_traffic import ARRIVALS, BLOCK_SIZES, EVENTS, MAX_MODEL_LEN, MAX_STEP_TOKENS, Prompt, compute_alone, make_probes
from slotwise.testing.simulated_request import SimulatedRequest
from slotwise.testing.simulated_step import Scheduled
from slotwise.testing.verdicts import ConformanceError, require


class KVCacheMachine(RuleBasedStateMachine):
    """`group_kinds`: for each group, the fields of `KVGroup` it may be made with."""

    def __init__(
        self,
        make_manager: Callable[[KVCacheSetup], KVCacheManager],
        group_kinds: Sequence[Sequence[dict[str, Any]]],
        *,
        enable_prefix_caching: bool = True,
    ) -> None:
        super().__init__()
        self.make_manager = make_manager
        self.group_kinds = group_kinds
        self.enable_prefix_caching = enable_prefix_caching

    @initialize(data=st.data(), num_usable_blocks=st.integers(5, 20))
    def build(self, data: st.DataObject, num_usable_blocks: int) -> None:
        groups = tuple(
            KVGroup(
                index=index,
                layer_names=(f"layer{index}",),
                block_size=data.draw(st.sampled_from(BLOCK_SIZES), label="block_size"),
                bytes_per_block=1,
                **data.draw(st.sampled_from(list(kinds)), label="kind"),
            )
            for index, kinds in enumerate(self.group_kinds)
        )
        setup = KVCacheSetup(
            groups=groups,
            num_blocks=num_usable_blocks + 1,
            max_model_len=MAX_MODEL_LEN,
            enable_prefix_caching=self.enable_prefix_caching,
            hash_seed=b"seed",
            max_num_batched_tokens=MAX_STEP_TOKENS,
            enable_events=True,
        )
        self.simulation = KVSimulation(self._make(setup), setup)
        self.longest = self.simulation.longest
        self.simulation.probes = make_probes(self.longest)
        self.waiting: list[SimulatedRequest] = []
        self.running: list[SimulatedRequest] = []
        self.num_arrivals = 0

    def _make(self, setup: KVCacheSetup) -> KVCacheManager:
        try:
            return self.make_manager(setup)
        except ValueError:
            if [group.kind for group in setup.groups] == [FULL]:
                raise
            reject()

    # One rule only: hypothesis switches rules off for whole runs, and a run that never steps finds nothing.
    @rule(data=st.data(), prompts=ARRIVALS, event=st.sampled_from(EVENTS), whole_prompt=st.booleans())
    def step(self, data: st.DataObject, prompts: list[Prompt], event: str, whole_prompt: bool) -> None:
        """Requests arrive, something may happen beside them, and one step is scheduled and computed, or fails."""
        self._arrive(prompts)
        if event in ("abort", "evict", "reset", "drain"):
            getattr(self, f"_{event}")(data)
            self.simulation.check(self.waiting[:2])
        num_preempted = 0
        for request in list(self.running):
            if request in self.running:
                num_preempted += self._go_on(request, data)
        while self.waiting and not num_preempted and self._admit(self.waiting[0], data, whole_prompt):
            pass
        if event in ("fail", "fail_and_forget"):
            for request in self.simulation.fail_step(forgets_everything=event == "fail_and_forget"):
                self.running.remove(request)
            return
        for request in self.simulation.run_step(lambda part: _sample(part, data)):
            if request.num_tokens > self.longest or (request.num_missing_tokens == 1 and data.draw(st.integers(0, 9)) == 0):
                self._end(request)

    def _arrive(self, prompts: list[Prompt]) -> None:
        """Prompts share a stem, so that most of them are prefixes of each other for a while."""
        for stem_len, tail, extra_keys, skip_reading in prompts:
            self.num_arrivals += 1
            tokens = ([0] * stem_len + tail)[: self.longest]
            self.waiting.append(
                SimulatedRequest(f"r{self.num_arrivals}", tokens, extra_keys=extra_keys, skip_reading_prefix_cache=skip_reading)
            )

    def _abort(self, data: st.DataObject) -> None:
        """Told twice, as when a client goes away while its request ends."""
        if self.running or self.waiting:
            request = data.draw(st.sampled_from(self.running + self.waiting), label="aborted")
            self._end(request)
            self.simulation.end(request)

    def _evict(self, data: st.DataObject) -> None:
        """Blocks stop being findable while their holder goes on."""
        if self.running:
            tables = self.simulation.manager.block_ids(data.draw(st.sampled_from(self.running), label="evicted").request_id)
            self.simulation.manager.evict_blocks(tables[0][data.draw(st.integers(0, len(tables[0]))) :])

    def _reset(self, data: st.DataObject) -> None:
        self.simulation.reset()

    def _drain(self, data: st.DataObject) -> None:
        """Everything ends; then one request alone must reach the length that was promised, through every block of the pool."""
        for request in [*self.running, *self.waiting]:
            self._end(request)
        manager = self.simulation.manager
        require(manager.num_free_blocks == manager.num_usable_blocks, "with nothing running, every block must be free")
        self.simulation.reset()
        self.num_arrivals += 1
        last = SimulatedRequest(f"r{self.num_arrivals}", [2] * self.longest)
        compute_alone(self.simulation, last)
        self.simulation.end(last)

    def _go_on(self, request: SimulatedRequest, data: st.DataObject) -> int:
        """How many were preempted for it. A victim may have been scheduled in this step, which is then undone."""
        num_tokens, num_drafts, num_lookahead = self._draw_sizes(request, data)
        for num_preempted in range(len(self.running) + 1):
            fits = self.simulation.grow(request, num_tokens, num_drafts=num_drafts, num_lookahead=num_lookahead)
            if not fits and self.running == [request]:
                require(self.simulation.grow(request, num_tokens), f"{request}, alone in the pool, cannot go on")
                return num_preempted
            if fits:
                return num_preempted
            victim = data.draw(st.sampled_from(self.running), label="victim")
            self.running.remove(victim)
            self.waiting.insert(0, victim)
            self.simulation.preempt(victim)
            if victim is request:
                return num_preempted + 1
        raise ConformanceError("every request was preempted and there still was no room")

    def _admit(self, request: SimulatedRequest, data: st.DataObject, whole_prompt: bool) -> bool:
        prefix = self.simulation.find(request)
        num_missing = request.num_tokens - prefix.num_tokens
        num_tokens = data.draw(st.integers(1, min(num_missing, MAX_STEP_TOKENS)), label="num_tokens")
        if not self.simulation.start(request, num_tokens, prefix, reserve_whole_prompt=whole_prompt):
            require(self.running, f"{request}, alone in the pool, cannot start")
            return False
        self.waiting.pop(0)
        self.running.append(request)
        return True

    def _draw_sizes(self, request: SimulatedRequest, data: st.DataObject) -> tuple[int, int, int]:
        num_tokens = data.draw(st.integers(1, min(request.num_missing_tokens, MAX_STEP_TOKENS)), label="num_tokens")
        end = request.num_computed_tokens + num_tokens
        room = min(3, MAX_STEP_TOKENS - num_tokens)
        may_draft = num_tokens == request.num_missing_tokens
        num_drafts = data.draw(st.integers(0, min(room, self.longest - end)), label="num_drafts") if may_draft else 0
        return num_tokens, num_drafts, data.draw(st.integers(0, room - num_drafts), label="num_lookahead")

    def _end(self, request: SimulatedRequest) -> None:
        (self.running if request in self.running else self.waiting).remove(request)
        self.simulation.end(request)

    @invariant()
    def everything_holds(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.check(self.waiting[:2])


def _sample(part: Scheduled, data: st.DataObject) -> list[int]:
    num_accepted = data.draw(st.integers(0, part.num_drafts), label="num_accepted") if part.num_drafts else 0
    return data.draw(st.lists(st.integers(0, 1), min_size=num_accepted + 1, max_size=num_accepted + 1), label="new_token_ids")
