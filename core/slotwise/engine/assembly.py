"""From a plan to a running engine core: memory, instances, wiring. Each component gets one keyword-only setup record."""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Sequence
from typing import cast

import torch

from slotwise.engine.attention_assembly import build_attention
from slotwise.engine.engine_core import EngineCore
from slotwise.engine.kv_plan import num_blocks_for
from slotwise.engine.kv_scales import find_kv_scales
from slotwise.engine.logits_processors import LogitsProcessors
from slotwise.engine.model_runner import ModelRunner
from slotwise.engine.pipelined_core import PipelinedEngineCore
from slotwise.engine.plan import EnginePlan, ModelPlan
from slotwise.engine.scheduler import Scheduler
from slotwise.engine.scheduler_limits import SchedulerLimits
from slotwise.engine.structured_outputs import StructuredOutputs
from slotwise.interfaces.eviction import EvictionSetup
from slotwise.interfaces.kv_cache import KVCacheManager, KVCacheSetup, KVRequest
from slotwise.interfaces.model import Model, ProgressCallback, WeightsSetup
from slotwise.interfaces.observer import ComponentInUse, EngineInfo, ObserverSetup
from slotwise.interfaces.sampler import Sampler, SamplerSetup
from slotwise.interfaces.scheduler import SchedulerSetup
from slotwise.plugin.observers import ObserverHub
from slotwise.startup import stage

logger = logging.getLogger(__name__)


def build_core(
    plan: EnginePlan,
    model_plan: ModelPlan,
    progress: ProgressCallback | None = None,
    *,
    loaded_model: Model | None = None,
    processors: LogitsProcessors | None = None,
    grammars: StructuredOutputs | None = None,
) -> EngineCore:
    """Load the weights, allocate the pool, make one instance of every chosen component. Raises WeightsError or PluginError.

    loaded_model: the same model with its parameters, from another engine; several engines may share one.
    """
    config = plan.config
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    for resolution in plan.resolutions:
        logger.info("%s", resolution.describe())
    model = loaded_model or model_plan.instance
    if loaded_model is None:
        _load_weights(plan, model_plan, progress)
    if (proposer := model_plan.proposer) is not None:
        proposer.setup = dataclasses.replace(proposer.setup, model=model)
        proposer.load()
    observers = _observers(plan)
    kv_cache = _kv_cache(plan, model_plan, enable_events=observers.active)
    max_model_len = _fit_model_len(model_plan.max_model_len, kv_cache)
    runner = ModelRunner(
        model=model,
        sampler=_sampler(plan, model_plan),
        attention=build_attention(
            plan,
            model_plan,
            num_blocks=kv_cache.num_usable_blocks + 1,
            max_model_len=max_model_len,
            scales=find_kv_scales(model, kv_dtype=model_plan.kv_dtype, device=plan.machine.device, max_model_len=max_model_len),
        ),
        groups=model_plan.kv.groups,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=max_model_len,
        device=plan.machine.device,
        processors=processors,
        proposer=model_plan.proposer,
    )
    scheduler = _scheduler(plan, kv_cache, max_model_len, num_lookahead=_num_lookahead(plan, model_plan))
    observers.engine_started(_engine_info(plan, model_plan, scheduler))
    core_class = PipelinedEngineCore if config.scheduler.async_scheduling else EngineCore
    return core_class(
        scheduler=scheduler,
        executor=runner,
        observers=observers,
        max_num_waiting=config.scheduler.max_num_waiting,
        grammars=grammars,
    )


def _load_weights(plan: EnginePlan, model_plan: ModelPlan, progress: ProgressCallback | None) -> None:
    chosen, source = plan.components["weights"], model_plan.source
    weights = chosen.implementation()(
        WeightsSetup(
            path=source.weights_path,
            hf_config=source.hf_config,
            seed=plan.config.seed,
            block_schemes=_block_schemes(plan),
            options=chosen.options,
        )
    )
    with stage("weights"):
        model_plan.instance.load(weights, progress)


def _block_schemes(plan: EnginePlan) -> tuple[str, ...]:
    """In which the model and its linear component take matrices as they are stored."""
    if not plan.components["model"].loaded.component.capabilities.takes_blocks:
        return ()
    schemes: tuple[str, ...] = plan.components["linear"].loaded.component.capabilities.block_schemes
    return schemes


def _sampler(plan: EnginePlan, model_plan: ModelPlan) -> Sampler:
    chosen = plan.components["sampler"]
    sampler: Sampler = chosen.implementation()(
        SamplerSetup(
            vocab_size=model_plan.description.vocab_size,
            max_num_reqs=plan.config.scheduler.max_num_seqs,
            device=plan.machine.device,
            logprobs_mode=plan.config.sampler.logprobs_mode,
            seed=plan.config.seed,
            options=chosen.options,
        )
    )
    return sampler


def _num_lookahead(plan: EnginePlan, model_plan: ModelPlan) -> int:
    """Slots behind a step's tokens that a proposer with layers writes: of the token just sampled, and of all drafts but the last."""
    has_layers = model_plan.proposer is not None and bool(model_plan.proposer.attention_layers)
    return plan.config.proposer.num_drafts if has_layers else 0


def _fit_model_len(model_len: int, kv_cache: KVCacheManager) -> int:
    """A request longer than what it can hold alone in the pool would preempt itself for ever. Its last token needs no room."""
    capacity = kv_cache.max_request_tokens()
    if capacity + 1 < model_len:
        logger.warning(
            "The KV cache holds %d tokens of one request; sequences are limited to that instead of %d. "
            "Raise kv_cache.num_blocks or kv_cache.memory_mib.",
            capacity,
            model_len,
        )
    return min(model_len, capacity + 1)


def _kv_cache(plan: EnginePlan, model_plan: ModelPlan, *, enable_events: bool) -> KVCacheManager:
    section, chosen = plan.config.kv_cache, plan.components["kv_cache"]
    num_blocks = section.num_blocks
    if num_blocks is None:
        memory = section.memory_mib * 2**20 if section.memory_mib is not None else plan.machine.memory_bytes // 4
        num_blocks = num_blocks_for(
            model_plan.kv,
            memory_bytes=memory,
            max_num_seqs=plan.config.scheduler.max_num_seqs,
            max_model_len=model_plan.max_model_len,
        )
    eviction = plan.components["eviction"]
    policy = eviction.implementation()
    manager: KVCacheManager = chosen.implementation()(
        KVCacheSetup(
            groups=model_plan.kv.groups,
            num_blocks=num_blocks + 1,
            max_model_len=model_plan.max_model_len,
            enable_prefix_caching=section.enable_prefix_caching,
            hash_seed=secrets.token_bytes(32) if section.hash_seed is None else section.hash_seed.encode(),
            max_num_batched_tokens=plan.config.scheduler.max_num_batched_tokens + _num_lookahead(plan, model_plan),
            enable_events=enable_events,
            options=chosen.options,
            eviction=lambda num_blocks: policy(EvictionSetup(num_blocks=num_blocks, options=eviction.options)),
        )
    )
    return manager


def _scheduler(plan: EnginePlan, kv_cache: KVCacheManager, model_len: int, *, num_lookahead: int) -> Scheduler:
    section, chosen = plan.config.scheduler, plan.components["scheduler"]
    policy = chosen.implementation()(
        SchedulerSetup(
            max_num_seqs=section.max_num_seqs,
            max_num_scheduled_tokens=section.max_num_batched_tokens,
            max_model_len=model_len,
            block_size=plan.config.kv_cache.block_size,
            cached_prefix_len=lambda request: kv_cache.find_cached_prefix(cast(KVRequest, request)).num_tokens,
            options=chosen.options,
        )
    )
    limits = SchedulerLimits(
        max_num_seqs=section.max_num_seqs,
        max_num_scheduled_tokens=section.max_num_batched_tokens,
        max_model_len=model_len,
        long_prefill_token_threshold=section.long_prefill_token_threshold,
        enable_chunked_prefill=section.enable_chunked_prefill,
        reserve_whole_prompt=section.reserve_whole_prompt,
        num_lookahead_tokens=num_lookahead,
    )
    scheduler = Scheduler(limits, policy, kv_cache)
    scheduler.count_common_prefix = any(chosen.loaded.component.capabilities.cascade for chosen in plan.attention.values())
    scheduler.record_held_blocks = plan.config.kv_cache.sanitize
    return scheduler


def _observers(plan: EnginePlan) -> ObserverHub:
    return ObserverHub({name: chosen.implementation()(ObserverSetup(options=chosen.options)) for name, chosen in plan.observers.items()})


def _engine_info(plan: EnginePlan, model_plan: ModelPlan, scheduler: Scheduler) -> EngineInfo:
    return EngineInfo(
        model=str(plan.config.model.source),
        device=plan.machine.device,
        dtype=model_plan.description.dtype,
        max_model_len=scheduler.limits.max_model_len,
        block_size=plan.config.kv_cache.block_size,
        num_blocks=scheduler.kv_cache.num_usable_blocks,
        components=components_in_use(plan),
    )


def components_in_use(plan: EnginePlan) -> Sequence[ComponentInUse]:
    """Which component fills each slot, with its distribution and version."""
    found: list[ComponentInUse] = []
    for resolution in plan.resolutions:
        taken = resolution.chosen_candidate
        if taken is None:
            continue  # a slot that may stay empty
        found.append(
            ComponentInUse(
                slot=resolution.slot, part=resolution.part, name=taken.name, distribution=taken.distribution, version=taken.version
            )
        )
    return found
