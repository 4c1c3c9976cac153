"""Attention from a plan: one backend instance per (KV group, backend), one cache per layer, memory shared between groups."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import torch

from slotwise.engine.attention_dispatch import AttentionDispatch, BoundLayer, GroupBackends
from slotwise.engine.attention_report import serving_lines
from slotwise.engine.kv_layout import allocate
from slotwise.engine.kv_plan import KVPlan
from slotwise.engine.kv_scales import NO_SCALES, KVScales
from slotwise.engine.plan import EnginePlan, ModelPlan
from slotwise.interfaces.attention import LATENT, AttentionBackend, AttentionSetup, KVCacheLayout, KVLayoutRequest
from slotwise.interfaces.kv_cache import KVGroup

logger = logging.getLogger(__name__)


def build_attention(
    plan: EnginePlan, model_plan: ModelPlan, *, num_blocks: int, max_model_len: int, scales: Mapping[str, KVScales]
) -> AttentionDispatch:
    """`num_blocks` counts the null block. scales: by layer name, of a quantised cache."""
    groups = [_group_backends(plan, model_plan, group, max_model_len) for group in model_plan.kv.groups]
    for line in serving_lines(plan.attention, model_plan.layers):
        logger.info("%s", line)
    group_of = model_plan.kv.group_of_layer()
    layouts: dict[str, KVCacheLayout] = {}
    for layer in model_plan.description.layers:
        group = group_of[layer.name]
        request = KVLayoutRequest(
            name=LATENT if layer.is_mla else model_plan.kv_layout,
            num_blocks=num_blocks,
            block_size=model_plan.kv.groups[group].block_size,
            num_kv_heads=layer.num_kv_heads,
            head_dim=layer.head_dim,
            dtype=model_plan.kv_dtype,
        )
        layouts[layer.name] = groups[group].prefill.kv_cache_layout(request)
    caches = _allocate_caches(model_plan.kv, layouts, plan.machine.device)
    bound = [
        BoundLayer(layer=layer, group=group_of[layer.name], kv_cache=caches[layer.name], scales=scales.get(layer.name, NO_SCALES))
        for layer in model_plan.description.layers
    ]
    if plan.config.kv_cache.sanitize:
        return _sanitized(bound, groups, model_plan.kv, num_blocks)
    return AttentionDispatch(bound, groups)


def _group_backends(plan: EnginePlan, model_plan: ModelPlan, group: KVGroup, max_model_len: int) -> GroupBackends:
    served = next(layer for layer in model_plan.layers if layer.name == group.layer_names[0])
    group_of = model_plan.kv.group_of_layer()
    layers = tuple(layer for layer in model_plan.description.layers if group_of[layer.name] == group.index)
    setup = AttentionSetup(
        layers=layers,
        block_size=group.block_size,
        kv_layout=LATENT if layers[0].is_mla else model_plan.kv_layout,
        dtype=model_plan.description.dtype,
        kv_dtype=model_plan.kv_dtype,
        device=plan.machine.device,
        max_num_reqs=plan.config.scheduler.max_num_seqs,
        max_num_batched_tokens=plan.config.scheduler.max_num_batched_tokens,
        max_model_len=max_model_len,
        batch_invariant=plan.config.attention.batch_invariant,
    )

    def backend(name: str) -> AttentionBackend:
        chosen = plan.attention[name]
        instance: AttentionBackend = chosen.implementation()(replace(setup, options=chosen.options))
        return instance

    prefill = backend(served.prefill)
    return GroupBackends(prefill=prefill, decode=prefill if served.decode == served.prefill else backend(served.decode))


def _sanitized(bound: list[BoundLayer], groups: list[GroupBackends], kv_plan: KVPlan, num_blocks: int) -> AttentionDispatch:
    from slotwise.sanitizer.dispatch import SanitizedAttentionDispatch

    logger.warning(
        "kv_cache.sanitize is on: %d KV blocks (%d MiB, and as much again for comparison) are checked at every layer. For debugging only.",
        num_blocks,
        num_blocks * kv_plan.bytes_per_block >> 20,
    )
    return SanitizedAttentionDispatch(bound, groups, kv_plan.groups)


def _allocate_caches(kv_plan: KVPlan, layouts: Mapping[str, KVCacheLayout], device: str) -> dict[str, torch.Tensor]:
    """Layers that share memory get the same tensor where their layouts are equal, and views of one buffer where they differ in shape."""
    tensors: dict[int, torch.Tensor] = {}
    caches = {}
    for name, layout in layouts.items():
        memory = kv_plan.memory_of_layer[name]
        if memory not in tensors:
            tensors[memory] = allocate(layout, device)
        tensor = tensors[memory]
        caches[name] = tensor if tuple(tensor.shape) == layout.shape else _reshaped(tensor, layout)
    return caches


def _reshaped(tensor: torch.Tensor, layout: KVCacheLayout) -> torch.Tensor:
    """The same memory in a layout of another shape and equal size."""
    order = layout.stride_order
    flat = tensor.permute(order).reshape(-1)
    inverse = [order.index(dimension) for dimension in range(len(order))]
    return flat.view([layout.shape[dimension] for dimension in order]).permute(inverse)
