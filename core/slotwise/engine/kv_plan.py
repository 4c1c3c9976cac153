"""Which layers share a block table, and which share memory.

Layers of one kind and shape form a bucket; buckets are cut into groups of about equal size, so that the pool's blocks can serve
any group: layer j of every group lives in the same tensor j, and a block belongs to one group at a time.

What this file does not know: who manages the blocks, which backend reads them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slotwise.interfaces.attention import ENCODER, ENCODER_ONLY, AttentionLayer
from slotwise.interfaces.kv_cache import KVGroup

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class KVPlan:
    """Groups, and the memory that each of their layers uses."""

    groups: tuple[KVGroup, ...]
    memory_of_layer: dict[str, int]
    """Layer name -> index of the tensor it shares with one layer of each other group."""
    bytes_of_memory: tuple[int, ...]
    """Bytes per block of each tensor."""
    sharing_target: dict[str, str] = field(default_factory=dict)
    """Layer without KV of its own -> the layer whose KV it reads."""

    @property
    def bytes_per_block(self) -> int:
        """What one block of the pool costs over all tensors."""
        return sum(self.bytes_of_memory)

    def group_of_layer(self) -> dict[str, int]:
        """Layer name -> index of its group; a layer without KV of its own is in the group of the one it reads."""
        groups = {name: group.index for group in self.groups for name in group.layer_names}
        return groups | {name: groups[target] for name, target in self.sharing_target.items()}


def plan_kv_groups(
    layers: Sequence[AttentionLayer], *, block_size: int, kv_dtype: str, companions: Sequence[AttentionLayer] = ()
) -> KVPlan:
    """Group the layers that own KV; those of an encoder cache none. `kv_dtype` is a storage dtype, not `auto`.

    companions: layers of a proposer. They join a group of their kind whatever their shape, so that a block holds their KV beside the
    model's, or form groups of their own where there is none.
    """
    plan = _plan_groups(layers, block_size=block_size, kv_dtype=kv_dtype)
    for layer in companions:
        if layer.kv_sharing_target is None:
            plan = _joined(plan, layer, block_size * _values_per_token(layer) * DTYPE_BYTES[kv_dtype], block_size)
    targets = {layer.name: layer.kv_sharing_target for layer in companions if layer.kv_sharing_target is not None}
    memory = plan.memory_of_layer | {name: plan.memory_of_layer[target] for name, target in targets.items()}
    return replace(plan, memory_of_layer=memory, sharing_target=plan.sharing_target | targets)


def _joined(plan: KVPlan, layer: AttentionLayer, bytes_per_block: int, block_size: int) -> KVPlan:
    """`plan` with one layer more, in memory of its own."""
    groups = list(plan.groups)
    wanted = (layer.kind, layer.sliding_window, layer.chunk_len)
    index = next((group.index for group in groups if (group.kind, group.sliding_window, group.chunk_len) == wanted), len(groups))
    if index == len(groups):
        kind, sliding_window, chunk_len = wanted
        empty = KVGroup(
            index=index,
            layer_names=(),
            kind=kind,
            sliding_window=sliding_window,
            chunk_len=chunk_len,
            block_size=block_size,
            bytes_per_block=0,
        )
        groups.append(empty)
    known = groups[index]
    size = max(known.bytes_per_block, bytes_per_block)
    groups[index] = replace(known, layer_names=(*known.layer_names, layer.name), bytes_per_block=size)
    return replace(
        plan,
        groups=tuple(groups),
        memory_of_layer=plan.memory_of_layer | {layer.name: len(plan.bytes_of_memory)},
        bytes_of_memory=(*plan.bytes_of_memory, bytes_per_block),
    )


def _values_per_token(layer: AttentionLayer) -> int:
    """Numbers that a layer caches of one token."""
    return (1 if layer.is_mla else 2 * layer.num_kv_heads) * layer.head_dim


def _plan_groups(layers: Sequence[AttentionLayer], *, block_size: int, kv_dtype: str) -> KVPlan:
    buckets: dict[tuple[object, ...], list[AttentionLayer]] = {}
    for layer in layers:
        if layer.kv_sharing_target is None and layer.attention_type not in (ENCODER, ENCODER_ONLY):
            buckets.setdefault(_bucket_of(layer), []).append(layer)
    if not buckets:
        return KVPlan(groups=(), memory_of_layer={}, bytes_of_memory=())
    group_size = _group_size([len(bucket) for bucket in buckets.values()])
    groups: list[KVGroup] = []
    memory_of_layer: dict[str, int] = {}
    memories: dict[tuple[int, int], int] = {}
    for bucket in buckets.values():
        bytes_per_block = block_size * _values_per_token(bucket[0]) * DTYPE_BYTES[kv_dtype]
        for start in range(0, len(bucket), group_size):
            members = bucket[start : start + group_size]
            groups.append(
                KVGroup(
                    index=len(groups),
                    layer_names=tuple(layer.name for layer in members),
                    kind=members[0].kind,
                    sliding_window=members[0].sliding_window,
                    chunk_len=members[0].chunk_len,
                    block_size=block_size,
                    bytes_per_block=bytes_per_block,
                )
            )
            for place, layer in enumerate(members):
                memory_of_layer[layer.name] = memories.setdefault((place, bytes_per_block), len(memories))
    sharing_target = {layer.name: layer.kv_sharing_target for layer in layers if layer.kv_sharing_target is not None}
    memory_of_layer |= {name: memory_of_layer[target] for name, target in sharing_target.items()}
    return KVPlan(
        groups=tuple(groups),
        memory_of_layer=memory_of_layer,
        bytes_of_memory=tuple(size for _, size in memories),
        sharing_target=sharing_target,
    )


def _bucket_of(layer: AttentionLayer) -> tuple[object, ...]:
    """Layers with an equal one may share a block table."""
    shape = (layer.num_kv_heads, layer.head_dim, layer.latent_value_dim)
    return (*shape, layer.kind, layer.sliding_window, layer.chunk_len, layer.attention_type)


def _group_size(bucket_sizes: Sequence[int]) -> int:
    """Layers per group: the smallest bucket's size, or the largest's where the difference costs less than a quarter in padding."""
    smallest, largest = min(bucket_sizes), max(bucket_sizes)
    return largest if largest < 1.25 * smallest else smallest


def num_blocks_for(plan: KVPlan, *, memory_bytes: int, max_num_seqs: int, max_model_len: int) -> int:
    """Usable blocks: what full load needs, but no more than fits the memory; at least 1."""
    needed = sum(math.ceil(max_model_len / group.block_size) for group in plan.groups) * max_num_seqs
    return max(1, min(needed, memory_bytes // plan.bytes_per_block - 1))
