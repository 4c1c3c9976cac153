"""A real engine around a model that costs nothing: scheduler, KV manager, policy, model runner, output processors.

What is real: `Scheduler`, the policy, the KV cache manager, `ModelRunner` with its persistent batch, input preparation and sampling
metadata, `OutputProcessor` without and with detokenization. What is not: forward, sampler kernel, attention backend, tokenizer.

What this file does not know: how many steps are measured, statistics.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

from slotwise.engine.core_request import EngineCoreRequest
from slotwise.engine.model_runner import ModelRunner
from slotwise.engine.output_processor import OutputProcessor
from slotwise.engine.request import Request, RequestStatus
from slotwise.engine.scheduler import Scheduler
from slotwise.engine.scheduler_limits import SchedulerLimits
from slotwise.interfaces.kv_cache import KVCacheSetup, KVGroup, KVRequest
from slotwise.interfaces.scheduler import SchedulerSetup
from slotwise.sampling_params import OutputKind, SamplingParams
from slotwise_contrib.bench.components import MeasuredComponents
from slotwise_contrib.bench.stand_ins import VOCAB_SIZE, NoAttention, NoModel, ReadyTokens, made_up_tokenizer
from slotwise_contrib.bench.step_clock import StepClock

MAX_PREFILL_TOKENS = 1 << 20
PARTS = ("schedule", "prepare", "sample", "update", "output", "output_text")
"""The laps of one step, in order: `schedule`; batch update and input preparation; sampling metadata and token bookkeeping;
`update_from_output`; output processing without text; the same with text."""
CORE_PARTS = ("schedule", "update", "output")
"""What other engines' overhead figures consist of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RigSettings:
    """What is built."""

    num_running: int
    context_len: int
    """Prompt length; requests get 0 .. block_size - 1 tokens more in turn, so that each step as many need a block as the next."""
    num_steps: int
    """Most steps that will be made."""
    block_size: int = 16
    output_kind: OutputKind = OutputKind.CUMULATIVE
    seed: int = 0


class EngineRig:
    """`num_running` requests that generate for `num_steps` steps, and as many waiting ones as `set_waiting` says."""

    def __init__(self, settings: RigSettings, components: MeasuredComponents) -> None:
        self.settings = settings
        self.clock = StepClock()
        num_running = settings.num_running
        budget = max(num_running, min(num_running * (settings.context_len + settings.block_size), MAX_PREFILL_TOKENS))
        max_model_len = settings.context_len + settings.block_size + settings.num_steps + 64
        group = KVGroup(index=0, layer_names=("layer.0",), block_size=settings.block_size, bytes_per_block=1)
        self.kv_cache = components.make_kv_cache(
            KVCacheSetup(
                groups=(group,),
                num_blocks=num_running * -(-max_model_len // settings.block_size) + 2,
                max_model_len=max_model_len,
                enable_prefix_caching=True,
                hash_seed=b"bench",
                max_num_batched_tokens=budget,
            )
        )
        self.policy = components.make_policy(
            SchedulerSetup(
                max_num_seqs=num_running,
                max_num_scheduled_tokens=budget,
                max_model_len=max_model_len,
                block_size=settings.block_size,
                cached_prefix_len=lambda request: self.kv_cache.find_cached_prefix(cast(KVRequest, request)).num_tokens,
            )
        )
        limits = SchedulerLimits(max_num_seqs=num_running, max_num_scheduled_tokens=budget, max_model_len=max_model_len)
        self.scheduler = Scheduler(limits, self.policy, self.kv_cache)
        self.runner = ModelRunner(
            model=NoModel(num_running),
            sampler=ReadyTokens(num_running, settings.seed),
            attention=NoAttention(),
            groups=(group,),
            max_num_seqs=num_running,
            max_model_len=max_model_len,
            device="cpu",
        )
        self.outputs = OutputProcessor(None)
        self.text_outputs = OutputProcessor(made_up_tokenizer())
        self._num_added = 0
        self._waiting_ids: list[str] = []
        self._params = SamplingParams(
            temperature=0.0, ignore_eos=True, max_tokens=settings.num_steps + 64, output_kind=settings.output_kind, detokenize=False
        )
        self._start()

    def _start(self) -> None:
        """Compute all prompts; afterwards every step is one token of each request."""
        for prompt in self._prompts():
            request = self._add(prompt)
            for processor, detokenize in ((self.outputs, False), (self.text_outputs, True)):
                params = replace(self._params, detokenize=detokenize)
                processor.add_request(
                    EngineCoreRequest(
                        request_id=request.request_id,
                        external_id=request.request_id,
                        prompt=None,
                        prompt_token_ids=prompt,
                        sampling_params=params,
                    )
                )
        while any(request.num_output_tokens == 0 for request in self.scheduler.requests.values()):
            self.step()

    def _prompts(self) -> Iterator[list[int]]:
        generator = random.Random(self.settings.seed)
        for index in range(self.settings.num_running):
            yield generator.choices(range(VOCAB_SIZE), k=self.settings.context_len + index % self.settings.block_size)

    def _add(self, prompt: list[int]) -> Request:
        request = Request(
            request_id=f"request-{self._num_added}",
            prompt_token_ids=prompt,
            sampling_params=self._params,
            arrival_time=float(self._num_added),
            arrival_index=self._num_added,
            client_id=f"client-{self._num_added % 8}",
        )
        self._num_added += 1
        self.scheduler.add_request(request)
        return request

    def set_waiting(self, num_waiting: int) -> None:
        """Let so many requests wait for a seat; all seats are taken. Those that waited before leave."""
        self.scheduler.finish_requests(self._waiting_ids, RequestStatus.FINISHED_ABORTED)
        prompt = next(self._prompts())
        self._waiting_ids = [self._add(prompt).request_id for _ in range(num_waiting)]

    def step(self) -> dict[str, int]:
        """One step of the whole engine. Returns the CPU nanoseconds of each of `PARTS`."""
        clock = self.clock
        clock.start()
        scheduled = self.scheduler.schedule()
        clock.lap("schedule")
        self.runner.execute_model(scheduled)
        clock.lap("prepare")
        computed = self.runner.sample_tokens()
        clock.lap("sample")
        outputs = self.scheduler.update_from_output(scheduled, computed)
        clock.lap("update")
        self.outputs.process(outputs)
        clock.lap("output")
        self.text_outputs.process(outputs)
        clock.lap("output_text")
        return clock.cpu_ns
