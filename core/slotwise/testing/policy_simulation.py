"""`PolicySimulation`: the core's scheduler and the `paged` KV cache manager under one policy, without a model.

It plays front end, clock and model runner, and checks after each step what the engine promises whatever the policy answers.
What this file does not know: chance; who calls it decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from slotwise.engine.request import Request, RequestStatus
from slotwise.engine.scheduler import Scheduler
from slotwise.engine.scheduler_limits import SchedulerLimits
from slotwise.engine.scheduler_output import ModelRunnerOutput, SchedulerOutput
from slotwise.interfaces.kv_cache import KVCacheManager, KVCacheSetup, KVGroup, KVRequest
from slotwise.interfaces.scheduler import SchedulerPolicy, SchedulerSetup
from slotwise.plugin.contract import import_implementation
from slotwise.sampling_params import SamplingParams
from slotwise.testing.conformance import load_component
from slotwise.testing.policy_observer import PolicyObserver
from slotwise.testing.verdicts import ConformanceError, require

MAX_IDLE_STEPS: Final = 100
"""Steps in a row without any work, though requests wait."""
STEP_SECONDS: Final = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Sizes of one simulation."""

    num_usable_blocks: int = 64
    block_size: int = 4
    max_num_seqs: int = 4
    token_budget: int = 16
    max_model_len: int = 48
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    reserve_whole_prompt: bool = False


class PolicySimulation:
    """One policy and the requests that go through it. One step takes `STEP_SECONDS`."""

    def __init__(
        self,
        make_policy: Callable[[SchedulerSetup], SchedulerPolicy],
        scale: Scale,
        *,
        request_class: type[Request] = Request,
        is_observed: bool = True,
    ) -> None:
        self.kv_cache = _paged_manager(scale)
        self.max_model_len = min(scale.max_model_len, self.kv_cache.max_request_tokens() + 1)
        budget = scale.token_budget if scale.enable_chunked_prefill else max(scale.token_budget, self.max_model_len)
        self.policy = make_policy(
            SchedulerSetup(
                max_num_seqs=scale.max_num_seqs,
                max_num_scheduled_tokens=budget,
                max_model_len=self.max_model_len,
                block_size=scale.block_size,
                cached_prefix_len=lambda request: self.kv_cache.find_cached_prefix(cast(KVRequest, request)).num_tokens,
            )
        )
        self.observer = PolicyObserver(self.policy) if is_observed else None
        limits = SchedulerLimits(
            max_num_seqs=scale.max_num_seqs,
            max_num_scheduled_tokens=budget,
            max_model_len=self.max_model_len,
            block_size=scale.block_size,
            long_prefill_token_threshold=scale.long_prefill_token_threshold,
            enable_chunked_prefill=scale.enable_chunked_prefill,
            reserve_whole_prompt=scale.reserve_whole_prompt,
        )
        self.now = 0.0
        self.scheduler = Scheduler(limits, self.policy, self.kv_cache, clock=lambda: self.now)
        self.scheduler.record_reasons = True
        self.started: list[str] = []
        """Ids in the order of their first admission."""
        self._request_class = request_class
        self._num_arrivals = 0
        self._num_idle_steps = 0
        self._num_missing: dict[str, int] = {}
        """Request id -> tokens it is still owed."""
        self._total_work = 0

    def add(self, prompt_token_ids: list[int], *, max_tokens: int = 4, priority: int = 0, client_id: str | None = None) -> str:
        """A request arrives now. Returns its id."""
        prompt = prompt_token_ids[: self.max_model_len - 1]
        request = self._request_class(
            request_id=f"r{self._num_arrivals}",
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            arrival_time=self.now,
            arrival_index=self._num_arrivals,
            priority=priority,
            client_id=client_id,
        )
        self._num_arrivals += 1
        self._num_missing[request.request_id] = min(max_tokens, self.max_model_len - len(prompt))
        self._total_work += len(prompt) + max_tokens
        self.scheduler.add_request(request)
        return request.request_id

    def abort(self, request_id: str) -> None:
        """The client went away; legal at any time, and more than once."""
        self.scheduler.finish_requests([request_id], RequestStatus.FINISHED_ABORTED)
        self._num_missing.pop(request_id, None)
        self._forget(request_id)

    def step(self) -> SchedulerOutput:
        """Schedule, compute, update."""
        scheduled = self.scheduler.schedule()
        self._check(scheduled)
        self.started += [data.request_id for data in scheduled.scheduled_new_requests]
        for output in self.scheduler.update_from_output(scheduled, self._compute(scheduled)):
            self._num_missing[output.request_id] -= len(output.new_token_ids)
            if output.finish_reason is not None:
                num_missing = self._num_missing.pop(output.request_id)
                require(num_missing == 0, f"{output.request_id} ended with {num_missing} tokens missing")
                self._forget(output.request_id)
        self.now += STEP_SECONDS
        return scheduled

    def _forget(self, request_id: str) -> None:
        if self.observer is not None:
            self.observer.forget(request_id)

    def _check(self, scheduled: SchedulerOutput) -> None:
        limits, running = self.scheduler.limits, {request.request_id for request in self.scheduler.running}
        counts = scheduled.num_scheduled_tokens
        require(sum(counts.values()) <= limits.max_num_scheduled_tokens, f"{counts} is more than the step's budget")
        require(len(running) <= limits.max_num_seqs, f"{len(running)} requests run, {limits.max_num_seqs} may")
        require(
            running >= set(counts) and all(count > 0 for count in counts.values()),
            f"scheduled {counts} while {sorted(running)} run",
        )
        self._num_idle_steps = 0 if counts or not self.scheduler.requests else self._num_idle_steps + 1
        if self._num_idle_steps > MAX_IDLE_STEPS:
            raise ConformanceError(
                f"nothing was scheduled in {MAX_IDLE_STEPS} steps though {sorted(self._num_missing)} wait; reasons: {scheduled.reasons}"
            )

    def _compute(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        output = ModelRunnerOutput(request_ids=[], sampled_token_ids=[])
        for request_id in scheduled.num_scheduled_tokens:
            request = self.scheduler.requests[request_id]
            is_done = request.num_computed_tokens >= request.num_tokens
            output.request_ids.append(request_id)
            output.sampled_token_ids.append([request.num_output_tokens % 2] if is_done else [])
        return output

    def drain(self) -> None:
        """Run until everybody was served. Raises ConformanceError if that takes far more steps than there is work."""
        limit = 100 + 20 * self._total_work
        for _ in range(limit):
            if not self.scheduler.requests:
                break
            self.step()
        require(
            not self.scheduler.requests,
            f"after {limit} more steps {sorted(self.scheduler.requests)} are not done, of {self._total_work} tokens in all; preemptions: "
            f"{ {name: request.num_preemptions for name, request in self.scheduler.requests.items()} }",
        )
        self.step()
        waiting = len(self.scheduler.waiting)
        require(not waiting, f"everybody was served, and {waiting} requests wait")
        require(self.kv_cache.num_free_blocks == self.kv_cache.num_usable_blocks, "everybody was served, and blocks are missing")


def _paged_manager(scale: Scale) -> KVCacheManager:
    implementation: type[Any] = import_implementation(load_component("kv_cache", "paged"))
    group = KVGroup(index=0, layer_names=("layer.0",), block_size=scale.block_size, bytes_per_block=1)
    manager: KVCacheManager = implementation(
        KVCacheSetup(
            groups=(group,),
            num_blocks=scale.num_usable_blocks + 1,
            max_model_len=scale.max_model_len,
            enable_prefix_caching=True,
            hash_seed=b"seed",
        )
    )
    return manager
