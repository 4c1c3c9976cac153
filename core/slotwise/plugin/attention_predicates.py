"""What speaks against an attention backend: each predicate in a function of its own, wanted against offered, with the nearest change.

All predicates are evaluated; none hides another. What this file does not know: names of backends, preferences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from slotwise.interfaces.attention import FULL, AttentionCapabilities, AttentionLayer
from slotwise.plugin.machine import MachineDescription
from slotwise.plugin.predicates import device_refusals, dtype_refusals, feature_refusals, listed
from slotwise.plugin.resolution import Refusal

_OTHER_BACKEND: Final = "choose another backend"


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionNeeds:
    """What a backend must be able to do."""

    machine: MachineDescription
    layers: tuple[AttentionLayer, ...]
    dtype: str
    kv_dtype: str = "auto"
    block_size: int = 16
    kv_layout: str = "auto"
    features: tuple[str, ...] = ()
    part: str = ""


def attention_refusals(capabilities: AttentionCapabilities, needs: AttentionNeeds) -> list[Refusal]:
    """Every refused predicate, in a fixed order."""
    return [
        *device_refusals(capabilities.devices, needs.machine),
        *_compute_capability(capabilities, needs),
        *dtype_refusals(capabilities.dtypes, needs.dtype),
        *_kv_dtype(capabilities, needs),
        *_head_dim(capabilities, needs),
        *_block_size(capabilities, needs),
        *_kv_layout(capabilities, needs),
        *_layer_kinds(capabilities, needs),
        *_attention_types(capabilities, needs),
        *feature_refusals(capabilities, [*_features_of(needs.layers), *needs.features]),
        *_mla_dims(capabilities, needs),
        *_combinations(capabilities, needs),
    ]


def _compute_capability(capabilities: AttentionCapabilities, needs: AttentionNeeds) -> Iterator[Refusal]:
    accepted, present = capabilities.compute_capability, needs.machine.compute_capability
    if accepted is None or needs.machine.device_type != "cuda":
        return
    lowest, highest = accepted
    if present is None or present < lowest or (highest is not None and present > highest):
        offered = f"{_dotted(lowest)} and above" if highest is None else f"{_dotted(lowest)} to {_dotted(highest)}"
        wanted = f"{_dotted(present)} ({needs.machine.device_name})" if present is not None else needs.machine.device_name
        yield Refusal(predicate="compute_capability", wanted=wanted, offered=offered, change=f"a GPU of compute capability {offered}")


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _kv_dtype(capabilities: AttentionCapabilities, needs: AttentionNeeds) -> Iterator[Refusal]:
    is_model_dtype = needs.kv_dtype in ("auto", needs.dtype)
    if not {"auto", needs.dtype} & set(capabilities.kv_dtypes) if is_model_dtype else needs.kv_dtype not in capabilities.kv_dtypes:
        change = f'kv_cache.dtype = "{capabilities.kv_dtypes[0]}"' if capabilities.kv_dtypes else _OTHER_BACKEND
        yield Refusal(predicate="kv_dtype", wanted=needs.kv_dtype, offered=listed(capabilities.kv_dtypes), change=change)


def _head_dim(capabilities: AttentionCapabilities, needs: AttentionNeeds) -> Iterator[Refusal]:
    refused = sorted({layer.head_dim for layer in needs.layers if not (layer.is_mla or _accepts_head_dim(capabilities, layer.head_dim))})
    if not refused:
        return
    limits = []
    if capabilities.head_dims is not None:
        limits.append(listed(capabilities.head_dims))
    if capabilities.head_dim_multiple_of > 1:
        limits.append(f"multiples of {capabilities.head_dim_multiple_of}")
    if capabilities.max_head_dim is not None:
        limits.append(f"at most {capabilities.max_head_dim}")
    offered = ", ".join(limits)
    yield Refusal(
        predicate="head_dim", wanted=listed(refused), offered=offered, change=f"{_OTHER_BACKEND}, or a model with head_dim {offered}"
    )


def _accepts_head_dim(capabilities: AttentionCapabilities, head_dim: int) -> bool:
    return (
        (capabilities.head_dims is None or head_dim in capabilities.head_dims)
        and head_dim % capabilities.head_dim_multiple_of == 0
        and (capabilities.max_head_dim is None or head_dim <= capabilities.max_head_dim)
    )


def _block_size(capabilities: AttentionCapabilities, needs: AttentionNeeds) -> Iterator[Refusal]:
    sizes, step = capabilities.block_sizes, capabilities.block_size_multiple_of
    if (sizes is None or needs.block_size in sizes) and needs.block_size % step == 0:
        return
    possible = [size for size in sizes if size % step == 0] if sizes is not None else _multiples_around(needs.block_size, step)
    nearest = min(possible, key=lambda size: (abs(size - needs.block_size), size), default=None)
    limits = ([listed(sizes)] if sizes is not None else []) + ([f"multiples of {step}"] if step > 1 else [])
    change = _OTHER_BACKEND if nearest is None else f"kv_cache.block_size = {nearest}"
    yield Refusal(predicate="block_size", wanted=str(needs.block_size), offered=", ".join(limits), change=change)


def _multiples_around(size: int, step: int) -> list[int]:
    below = size // step * step
    return [multiple for multiple in (below, below + step) if multiple > 0]


def _kv_layout(capabilities: AttentionCapabilities, needs: AttentionNeeds) -> Iterator[Refusal]:
    if needs.kv_layout != "auto" and needs.kv_layout not in capabilities.kv_layouts:
        change = f'kv_cache.layout = "{capabilities.kv_layouts[0]}"' if capabilities.kv_layouts else _OTHER_BACKEND
        yield Refusal(predicate="kv_layout", wanted=needs.kv_layout, offered=listed(capabilities.kv_layouts), change=change)


def _layer_kinds(capabilities: AttentionCapabilities, needs: AttentionNeeds) -> Iterator[Refusal]:
    for kind in _missing((layer.kind for layer in needs.layers), capabilities.layer_kinds):
        has_others = not needs.part and any(layer.kind in capabilities.layer_kinds for layer in needs.layers)
        change = (
            f"another backend for these layers alone: attention.per_kind.{kind}" if has_others else f"{_OTHER_BACKEND} for {kind} layers"
        )
        yield Refusal(predicate="layer_kind", wanted=kind, offered=listed(capabilities.layer_kinds), change=change)


def _attention_types(capabilities: AttentionCapabilities, needs: AttentionNeeds) -> Iterator[Refusal]:
    for wanted in _missing((layer.attention_type for layer in needs.layers), capabilities.attention_types):
        yield Refusal(predicate="attention_type", wanted=wanted, offered=listed(capabilities.attention_types), change=_OTHER_BACKEND)


def _missing(wanted: Iterable[str], offered: tuple[str, ...]) -> list[str]:
    return sorted(set(wanted) - set(offered), key=lambda kind: (kind != FULL, kind))


def _mla_dims(capabilities: AttentionCapabilities, needs: AttentionNeeds) -> Iterator[Refusal]:
    accepted = capabilities.mla_dims
    if not capabilities.mla or accepted is None:
        return
    refused = sorted(
        {(layer.head_dim, layer.latent_value_dim) for layer in needs.layers if layer.latent_value_dim is not None} - set(accepted)
    )
    if refused:
        yield Refusal(
            predicate="mla_dims",
            wanted=listed(refused),
            offered=listed(accepted),
            change=f"{_OTHER_BACKEND}, or a model with {listed(accepted)}",
        )


def _combinations(capabilities: AttentionCapabilities, needs: AttentionNeeds) -> Iterator[Refusal]:
    """What it serves alone but not together on one layer."""
    kv_dtype = "auto" if needs.kv_dtype == needs.dtype else needs.kv_dtype
    for combination in capabilities.not_together:
        if any(set(combination) <= {*_layer_needs(layer), kv_dtype, *needs.features} for layer in needs.layers):
            wanted = " with ".join(combination)
            yield Refusal(predicate="combination", wanted=wanted, offered=" or ".join(combination), change=_OTHER_BACKEND)


def _features_of(layers: tuple[AttentionLayer, ...]) -> list[str]:
    """Boolean capabilities that some layer needs."""
    return list(dict.fromkeys(feature for layer in layers for feature in _layer_features(layer)))


def _layer_features(layer: AttentionLayer) -> list[str]:
    needed = {
        "logits_soft_cap": layer.logits_soft_cap is not None,
        "alibi": layer.has_alibi,
        "sinks": layer.has_sinks,
        "non_causal": not layer.causal,
        "kv_sharing": layer.kv_sharing_target is not None,
        "mla": layer.is_mla,
    }
    return [feature for feature, is_needed in needed.items() if is_needed]


def _layer_needs(layer: AttentionLayer) -> list[str]:
    """In the words of `AttentionCapabilities.not_together`."""
    return [*_layer_features(layer), layer.kind, layer.attention_type]
