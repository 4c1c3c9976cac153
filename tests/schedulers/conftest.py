"""Requests to order, and an engine without a model: real core scheduler, real KV manager, tokens and time made up by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest

from slotwise.engine.request import Request, RequestStatus
from slotwise.engine.scheduler import Scheduler
from slotwise.engine.scheduler_limits import SchedulerLimits
from slotwise.engine.scheduler_output import ModelRunnerOutput, SchedulerOutput
from slotwise.interfaces.kv_cache import KVCacheSetup, KVGroup, KVRequest
from slotwise.interfaces.scheduler import SchedulerPolicy, SchedulerSetup, SchedulerState
from slotwise.sampling_params import SamplingParams
from slotwise_plugins.kv_cache.manager import PagedKVCacheManager
from slotwise_schedulers.options import BudgetOptions

FIRST_OUTPUT_TOKEN = 1_000_000


def build_request(arrival_index: int, *, prompt: int | Iterable[int] = 1, max_tokens: int = 16, **fields: Any) -> Request:
    """A waiting request named `r<arrival_index>`; `fields` are set as they are."""
    ids = list(range(1000 * arrival_index, 1000 * arrival_index + prompt)) if isinstance(prompt, int) else list(prompt)
    request = Request(
        request_id=f"r{arrival_index}",
        prompt_token_ids=ids,
        sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        arrival_index=arrival_index,
    )
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def build_setup(options: BudgetOptions | None = None, **fields: Any) -> SchedulerSetup:
    defaults = {"max_num_seqs": 8, "max_num_scheduled_tokens": 64, "max_model_len": 256, "block_size": 4}
    return SchedulerSetup(**{**defaults, **fields}, options=options)


def build_state(**fields: Any) -> SchedulerState:
    defaults = {"now": 0.0, "token_budget": 64, "num_running": 0, "num_waiting": 1, "num_free_blocks": 100, "num_usable_blocks": 100}
    return SchedulerState(**{**defaults, **fields})


class Simulation:
    """Front end, clock and model runner of one scheduler. One step takes one second."""

    def __init__(
        self,
        policy: type[SchedulerPolicy],
        options: BudgetOptions | None = None,
        *,
        num_blocks: int = 1000,
        block_size: int = 4,
        max_num_seqs: int = 8,
        budget: int = 64,
        max_model_len: int = 4096,
    ) -> None:
        group = KVGroup(index=0, layer_names=("layer.0",), block_size=block_size, bytes_per_block=1)
        self.kv_cache = PagedKVCacheManager(
            KVCacheSetup(
                groups=(group,), num_blocks=num_blocks + 1, max_model_len=max_model_len, enable_prefix_caching=True, hash_seed=b"seed"
            )
        )
        setup = SchedulerSetup(
            max_num_seqs=max_num_seqs,
            max_num_scheduled_tokens=budget,
            max_model_len=max_model_len,
            block_size=block_size,
            cached_prefix_len=lambda request: self.kv_cache.find_cached_prefix(cast(KVRequest, request)).num_tokens,
            options=options,
        )
        limits = SchedulerLimits(
            max_num_seqs=max_num_seqs,
            max_num_scheduled_tokens=budget,
            max_model_len=min(max_model_len, num_blocks * block_size),
            block_size=block_size,
        )
        self.now = 0.0
        self.policy = policy(setup)
        self.scheduler = Scheduler(limits, self.policy, self.kv_cache, clock=lambda: self.now)
        self.scheduler.record_reasons = True
        self.tokens: dict[str, list[int]] = {}
        self.admissions: list[str] = []
        """Ids in the order they started, once more after each preemption."""
        self.reasons: list[str] = []
        self._num_arrivals = 0

    def add(self, prompt: int | Iterable[int] = 4, *, max_tokens: int = 4, **fields: Any) -> Request:
        request = build_request(self._num_arrivals, prompt=prompt, max_tokens=max_tokens, arrival_time=self.now, **fields)
        self._num_arrivals += 1
        self.scheduler.add_request(request)
        return request

    def abort(self, request: Request) -> None:
        self.scheduler.finish_requests([request.request_id], RequestStatus.FINISHED_ABORTED)

    def step(self) -> SchedulerOutput:
        scheduled = self.scheduler.schedule()
        self.admissions += [data.request_id for data in scheduled.scheduled_new_requests]
        self.admissions += sorted(scheduled.scheduled_cached_requests.resumed_request_ids)
        self.reasons += scheduled.reasons.values()
        for output in self.scheduler.update_from_output(scheduled, self._compute(scheduled)):
            self.tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
        self.now += 1.0
        return scheduled

    def _compute(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        """Token k of a request is `FIRST_OUTPUT_TOKEN + k`; prompts that are not done yield none."""
        output = ModelRunnerOutput(request_ids=[], sampled_token_ids=[])
        for request_id in scheduled.num_scheduled_tokens:
            request = self.scheduler.requests[request_id]
            is_done = request.num_computed_tokens >= request.num_tokens
            output.request_ids.append(request_id)
            output.sampled_token_ids.append([FIRST_OUTPUT_TOKEN + request.num_output_tokens] if is_done else [])
        return output

    def steps_until(self, is_reached: Callable[[], bool], *, at_most: int = 5000) -> int:
        """Steps taken until then."""
        for count in range(at_most + 1):
            if is_reached():
                return count
            self.step()
        raise AssertionError(f"not reached after {at_most} steps; {self.scheduler.num_waiting} wait, {len(self.scheduler.running)} run")

    def finish(self) -> None:
        """Run until nobody is left. Every request then has all its tokens, each once, and every block is free."""
        self.steps_until(lambda: not self.scheduler.requests)
        assert self.kv_cache.num_free_blocks == self.kv_cache.num_usable_blocks

    def has_all_tokens(self, request: Request) -> bool:
        return self.tokens.get(request.request_id) == [FIRST_OUTPUT_TOKEN + k for k in range(request.max_tokens)]


@pytest.fixture(scope="session")
def make_request() -> Callable[..., Request]:
    return build_request


@pytest.fixture(scope="session")
def make_setup() -> Callable[..., SchedulerSetup]:
    return build_setup


@pytest.fixture(scope="session")
def make_state() -> Callable[..., SchedulerState]:
    return build_state


@pytest.fixture(scope="session")
def make_simulation() -> type[Simulation]:
    return Simulation
