"""From a plan to a running engine core: memory, instances, wiring. Each component gets one keyword-only setup record."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from slotwise.config.engine_config import EngineConfig
from slotwise.engine.attention_dispatch import AttentionDispatch, BoundLayer, GroupBackends
from slotwise.engine.engine_core import EngineCore
from slotwise.engine.kv_layout import allocate, negotiate_layout
from slotwise.engine.kv_plan import KVPlan, num_blocks_for, plan_kv_groups
from slotwise.engine.model_runner import ModelRunner
from slotwise.engine.pipelined_core import PipelinedEngineCore
from slotwise.engine.plan import EnginePlan
from slotwise.engine.scheduler import Scheduler, SchedulerLimits
from slotwise.errors import ConfigError, ResolutionError
from slotwise.interfaces.attention import (
    STANDARD_KV_LAYOUTS,
    AttentionBackend,
    AttentionLayer,
    AttentionSetup,
    KVCacheLayout,
    KVLayoutRequest,
)
from slotwise.interfaces.eviction import EvictionSetup
from slotwise.interfaces.kv_cache import KVCacheManager, KVCacheSetup, KVGroup, KVRequest
from slotwise.interfaces.model import ProgressCallback, WeightsSetup
from slotwise.interfaces.observer import ComponentInUse, EngineInfo, ObserverSetup
from slotwise.interfaces.sampler import SamplerSetup
from slotwise.interfaces.scheduler import SchedulerSetup
from slotwise.plugin.observers import ObserverHub

logger = logging.getLogger(__name__)


def build_core(plan: EnginePlan, progress: ProgressCallback | None = None, *, load_weights: bool = True) -> EngineCore:
    """Load the weights, allocate the pool, make one instance of every chosen component. Raises WeightsError, ConfigError or PluginError.

    `load_weights` False: the plan's model holds its parameters already (several engines may share one model).
    """
    config, model, source = plan.config, plan.model_instance, plan.source
    if model is None or source is None or plan.model is None:
        raise ConfigError(
            "The configuration names no model. Give model.source: a directory, a .gguf file or a known name (`slotwise models`).",
            key="model.source",
        )
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    for resolution in plan.resolutions:
        logger.info("%s", resolution.describe())
    if load_weights:
        weights = plan.components["weights"]
        setup = WeightsSetup(path=source.weights_path, hf_config=source.hf_config, seed=config.seed, options=weights.options)
        model.load(weights.implementation()(setup), progress)
    kv_dtype = plan.model.dtype if config.kv_cache.dtype == "auto" else config.kv_cache.dtype
    kv_plan = plan_kv_groups(plan.model.layers, block_size=config.kv_cache.block_size, kv_dtype=kv_dtype)
    model_len = _model_len(config, plan.model.max_model_len)
    observers = _observers(plan)
    kv_cache = _kv_cache(plan, kv_plan, model_len, enable_events=observers.active)
    model_len = _fit_model_len(model_len, kv_cache)
    scheduler = _scheduler(plan, kv_cache, model_len)
    attention = _attention(plan, kv_plan, kv_dtype, num_blocks=kv_cache.num_usable_blocks + 1, max_model_len=model_len)
    sampler = plan.components["sampler"]
    runner = ModelRunner(
        model=model,
        sampler=sampler.implementation()(
            SamplerSetup(
                vocab_size=plan.model.vocab_size,
                max_num_reqs=config.scheduler.max_num_seqs,
                device=plan.machine.device_type,
                logprobs_mode=config.sampler.logprobs_mode,
                seed=config.seed,
                options=sampler.options,
            )
        ),
        attention=attention,
        groups=kv_plan.groups,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=model_len,
        device=plan.machine.device_type,
    )
    observers.engine_started(_engine_info(plan, scheduler))
    core_class = PipelinedEngineCore if config.scheduler.async_scheduling else EngineCore
    return core_class(scheduler=scheduler, executor=runner, observers=observers, max_num_waiting=config.scheduler.max_num_waiting)


def _model_len(config: EngineConfig, limit: int) -> int:
    wanted = config.model.max_model_len
    if wanted is not None and wanted > limit:
        raise ConfigError(
            f"model.max_model_len is {wanted}, but the model was made for {limit} positions. Lower it.", key="model.max_model_len"
        )
    return wanted or limit


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


def _kv_cache(plan: EnginePlan, kv_plan: KVPlan, model_len: int, *, enable_events: bool) -> KVCacheManager:
    section, chosen = plan.config.kv_cache, plan.components["kv_cache"]
    if section.num_blocks is not None and section.memory_mib is not None:
        raise ConfigError("kv_cache.num_blocks and kv_cache.memory_mib both size the pool; give one of them.", key="kv_cache.num_blocks")
    num_blocks = section.num_blocks
    if num_blocks is None:
        memory = section.memory_mib * 2**20 if section.memory_mib is not None else plan.machine.memory_bytes // 4
        num_blocks = num_blocks_for(kv_plan, memory_bytes=memory, max_num_seqs=plan.config.scheduler.max_num_seqs, max_model_len=model_len)
    eviction = plan.components["eviction"]
    policy = eviction.implementation()
    manager: KVCacheManager = chosen.implementation()(
        KVCacheSetup(
            groups=kv_plan.groups,
            num_blocks=num_blocks + 1,
            max_model_len=model_len,
            enable_prefix_caching=section.enable_prefix_caching,
            hash_seed=secrets.token_bytes(32) if section.hash_seed is None else section.hash_seed.encode(),
            max_num_batched_tokens=plan.config.scheduler.max_num_batched_tokens,
            enable_events=enable_events,
            options=chosen.options,
            eviction=lambda num_blocks: policy(EvictionSetup(num_blocks=num_blocks, options=eviction.options)),
        )
    )
    return manager


def _scheduler(plan: EnginePlan, kv_cache: KVCacheManager, model_len: int) -> Scheduler:
    section, chosen = plan.config.scheduler, plan.components["scheduler"]
    if not section.enable_chunked_prefill and section.max_num_batched_tokens < model_len:
        raise ConfigError(
            "Without scheduler.enable_chunked_prefill a prompt must fit one step: "
            f"max_num_batched_tokens is {section.max_num_batched_tokens}, "
            f"sequences may have {model_len} tokens. Raise the former or lower model.max_model_len.",
            key="scheduler.max_num_batched_tokens",
        )
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
    )
    scheduler = Scheduler(limits, policy, kv_cache)
    scheduler.record_held_blocks = plan.config.kv_cache.sanitize
    return scheduler


def _attention(plan: EnginePlan, kv_plan: KVPlan, kv_dtype: str, *, num_blocks: int, max_model_len: int) -> AttentionDispatch:
    """One backend instance per (KV group, backend), one cache per layer, memory shared between groups."""
    assert plan.model is not None
    layers = {layer.name: layer for layer in plan.model.layers}
    group_of = kv_plan.group_of_layer()
    for layer in layers.values():
        if layer.kv_sharing_target is not None:
            group_of[layer.name] = group_of[layer.kv_sharing_target]
    layout_name = _agree_on_layout(plan)
    _refuse_copies_of_private_layout(plan, layout_name)
    instances: dict[tuple[int, str], AttentionBackend] = {}

    def backend(group: KVGroup, name: str) -> AttentionBackend:
        if (group.index, name) not in instances:
            members = tuple(layer for layer in layers.values() if group_of[layer.name] == group.index)
            instances[group.index, name] = plan.attention[name].implementation()(
                AttentionSetup(
                    layers=members,
                    block_size=group.block_size,
                    kv_layout=layout_name,
                    dtype=plan.model.dtype if plan.model else kv_dtype,
                    kv_dtype=kv_dtype,
                    device=plan.machine.device_type,
                    max_num_reqs=plan.config.scheduler.max_num_seqs,
                    max_num_batched_tokens=plan.config.scheduler.max_num_batched_tokens,
                    max_model_len=max_model_len,
                    options=plan.attention[name].options,
                )
            )
        return instances[group.index, name]

    served = {layer.name: layer for layer in plan.layers}
    groups = []
    for group in kv_plan.groups:
        first = served[group.layer_names[0]]
        groups.append(GroupBackends(prefill=backend(group, first.prefill), decode=backend(group, first.decode)))
    caches = _allocate_caches(
        kv_plan,
        {
            name: groups[group_of[name]].prefill.kv_cache_layout(
                _layout_request(layer, layout_name, kv_plan, group_of, num_blocks, kv_dtype)
            )
            for name, layer in layers.items()
        },
        plan.machine.device_type,
    )
    bound = [BoundLayer(layer=layer, group=group_of[name], kv_cache=caches[name]) for name, layer in layers.items()]
    if plan.config.kv_cache.sanitize:
        return _sanitized(bound, groups, kv_plan)
    return AttentionDispatch(bound, groups)


def _sanitized(bound: Sequence[BoundLayer], groups: Sequence[GroupBackends], kv_plan: KVPlan) -> AttentionDispatch:
    from slotwise.sanitizer.dispatch import SanitizedAttentionDispatch

    num_blocks = bound[0].kv_cache.shape[0]
    logger.warning(
        "kv_cache.sanitize is on: %d KV blocks (%d MiB, and as much again for comparison) are checked at every layer. For debugging only.",
        num_blocks,
        num_blocks * kv_plan.bytes_per_block >> 20,
    )
    return SanitizedAttentionDispatch(bound, groups, kv_plan.groups)


def _agree_on_layout(plan: EnginePlan) -> str:
    """One layout for all caches, since groups share memory."""
    if plan.config.kv_cache.layout != "auto":
        return plan.config.kv_cache.layout
    accepted = {name: chosen.loaded.component.capabilities.kv_layouts for name, chosen in plan.attention.items()}
    name = negotiate_layout(accepted.values())
    if name is None:
        offers = "; ".join(f"{backend}: {', '.join(layouts)}" for backend, layouts in accepted.items())
        raise ResolutionError(f"The attention backends agree on no KV layout ({offers}). Choose backends that share one.")
    return name


def _refuse_copies_of_private_layout(plan: EnginePlan, layout_name: str) -> None:
    manager = plan.components["kv_cache"]
    if manager.implementation().copies_blocks and layout_name not in STANDARD_KV_LAYOUTS:
        raise ConfigError(
            f"kv_cache.use is {manager.name}, which copies KV between blocks, but the KV layout {layout_name} is a backend's own and "
            f'cannot be copied. Choose a backend with a layout of {", ".join(STANDARD_KV_LAYOUTS)}, or kv_cache.use = "paged".',
            key="kv_cache.use",
        )


def _layout_request(
    layer: AttentionLayer, name: str, kv_plan: KVPlan, group_of: Mapping[str, int], num_blocks: int, kv_dtype: str
) -> KVLayoutRequest:
    return KVLayoutRequest(
        name=name,
        num_blocks=num_blocks,
        block_size=kv_plan.groups[group_of[layer.name]].block_size,
        num_kv_heads=layer.num_kv_heads,
        head_dim=layer.head_dim,
        dtype=kv_dtype,
    )


def _allocate_caches(kv_plan: KVPlan, layouts: Mapping[str, KVCacheLayout], device: str) -> dict[str, torch.Tensor]:
    """Layers that share memory get the same tensor where their layouts are equal, and views of one buffer where they differ in shape."""
    tensors: dict[int, torch.Tensor] = {}
    caches = {}
    for name, layout in layouts.items():
        memory = kv_plan.memory_of_layer[name]
        if memory not in tensors:
            tensors[memory] = allocate(layout, device)
        tensor = tensors[memory]
        if tuple(tensor.shape) != layout.shape:
            flat = tensor.permute(layout.stride_order).reshape(-1)
            order = layout.stride_order
            inverse = [order.index(dimension) for dimension in range(len(order))]
            tensor = flat.view([layout.shape[dimension] for dimension in order]).permute(inverse)
        caches[name] = tensor
    return caches


def _observers(plan: EnginePlan) -> ObserverHub:
    return ObserverHub({name: chosen.implementation()(ObserverSetup(options=chosen.options)) for name, chosen in plan.observers.items()})


def _engine_info(plan: EnginePlan, scheduler: Scheduler) -> EngineInfo:
    assert plan.model is not None
    return EngineInfo(
        model=str(plan.config.model.source),
        device=plan.machine.device_type,
        dtype=plan.model.dtype,
        max_model_len=scheduler.limits.max_model_len,
        block_size=plan.config.kv_cache.block_size,
        num_blocks=scheduler.kv_cache.num_usable_blocks,
        components=components_in_use(plan),
    )


def components_in_use(plan: EnginePlan) -> Sequence[ComponentInUse]:
    """Which component fills each slot, with its distribution and version."""
    found: list[ComponentInUse] = []
    for resolution in plan.resolutions:
        taken: Any = resolution.chosen_candidate
        found.append(
            ComponentInUse(
                slot=resolution.slot, part=resolution.part, name=taken.name, distribution=taken.distribution, version=taken.version
            )
        )
    return found
