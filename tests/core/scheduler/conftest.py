"""A scheduler without a model: real KV manager, real policies, tokens made up by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from slotwise.engine.outputs import EngineCoreOutput
from slotwise.engine.request import Request
from slotwise.engine.scheduler import Scheduler
from slotwise.engine.scheduler_limits import SchedulerLimits
from slotwise.engine.scheduler_output import ModelRunnerOutput, SchedulerOutput
from slotwise.interfaces.kv_cache import KVCacheSetup, KVGroup
from slotwise.interfaces.scheduler import SchedulerPolicy, SchedulerSetup
from slotwise.sampling_params import SamplingParams
from slotwise_plugins.kv_cache.manager import PagedKVCacheManager
from slotwise_schedulers.fcfs import FcfsScheduler

EOS = 7


class SchedulerHarness:
    """Plays front end and model runner for one scheduler."""

    def __init__(
        self,
        *,
        num_blocks: int = 100,
        block_size: int = 4,
        policy: type[SchedulerPolicy] = FcfsScheduler,
        enable_prefix_caching: bool = True,
        max_num_seqs: int = 16,
        max_num_scheduled_tokens: int = 64,
        max_model_len: int = 256,
        **limits: bool | int,
    ) -> None:
        group = KVGroup(index=0, layer_names=("layer.0",), block_size=block_size, bytes_per_block=1)
        self.kv_cache = PagedKVCacheManager(
            KVCacheSetup(
                groups=(group,),
                num_blocks=num_blocks + 1,
                max_model_len=max_model_len,
                enable_prefix_caching=enable_prefix_caching,
                hash_seed=b"seed",
            )
        )
        self.scheduler = Scheduler(
            SchedulerLimits(
                max_num_seqs=max_num_seqs, max_num_scheduled_tokens=max_num_scheduled_tokens, max_model_len=max_model_len, **limits
            ),
            policy(
                SchedulerSetup(
                    max_num_seqs=max_num_seqs,
                    max_num_scheduled_tokens=max_num_scheduled_tokens,
                    max_model_len=max_model_len,
                    block_size=block_size,
                )
            ),
            self.kv_cache,
        )
        self._count = 0

    def add(self, request_id: str, prompt: int | Iterable[int], *, max_tokens: int = 16, **kwargs: object) -> Request:
        """A request with that many (distinct) prompt tokens, or with these."""
        first = 1000 * (self._count + 1)
        ids = list(range(first, first + prompt)) if isinstance(prompt, int) else list(prompt)
        priority = kwargs.pop("priority", 0)
        request = Request(
            request_id=request_id,
            prompt_token_ids=ids,
            sampling_params=SamplingParams(max_tokens=max_tokens, **kwargs),
            eos_token_ids=frozenset({EOS}),
            arrival_time=float(self._count),
            arrival_index=self._count,
            priority=priority,
        )
        self._count += 1
        self.scheduler.add_request(request)
        return request

    def sample(self, scheduled: SchedulerOutput, token: Callable[[Request], int]) -> ModelRunnerOutput:
        """What the runner would return: a token for each request whose tokens are all computed."""
        output = ModelRunnerOutput(request_ids=[], sampled_token_ids=[])
        for request_id in scheduled.num_scheduled_tokens:
            request = self.scheduler.requests[request_id]
            done = request.num_computed_tokens >= request.num_tokens
            output.request_ids.append(request_id)
            output.sampled_token_ids.append([token(request)] if done else [])
        return output

    def step(self, token: Callable[[Request], int] = lambda _: 50) -> tuple[SchedulerOutput, list[EngineCoreOutput]]:
        scheduled = self.scheduler.schedule()
        assert sum(scheduled.num_scheduled_tokens.values()) == scheduled.total_num_scheduled_tokens
        assert scheduled.total_num_scheduled_tokens <= self.scheduler.limits.max_num_scheduled_tokens
        return scheduled, self.scheduler.update_from_output(scheduled, self.sample(scheduled, token))

    def run(self, token: Callable[[Request], int] = lambda _: 50, max_steps: int = 2000) -> dict[str, list[int]]:
        """Until nothing is left. Returns each request's tokens."""
        tokens: dict[str, list[int]] = {}
        for _ in range(max_steps):
            if not self.scheduler.requests:
                assert self.is_idle
                return tokens
            scheduled, outputs = self.step(token)
            assert scheduled.num_scheduled_tokens, "nothing was scheduled though requests wait"
            for output in outputs:
                tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
        raise AssertionError(f"not done after {max_steps} steps")

    @property
    def is_idle(self) -> bool:
        """Nothing runs or waits, and no block is lost."""
        scheduler = self.scheduler
        return not scheduler.running and not scheduler.num_waiting and self.kv_cache.num_free_blocks == self.kv_cache.num_usable_blocks


@pytest.fixture(scope="session")
def make_harness() -> type[SchedulerHarness]:
    return SchedulerHarness
