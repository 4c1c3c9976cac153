"""What speaks against a component of the slots without predicates of their own file, and the predicates that slots share.

What this file does not know: names of components; how the best of those that fit is picked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from slotwise.interfaces.linear import LinearCapabilities
from slotwise.interfaces.model import ModelCapabilities, ModelDescription, WeightsCapabilities
from slotwise.interfaces.sampler import SamplerCapabilities
from slotwise.plugin.component import Component
from slotwise.plugin.machine import MachineDescription
from slotwise.plugin.resolution import Refusal


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotNeeds:
    """What a component must be able to do; None = not known, speaks against nobody."""

    machine: MachineDescription | None = None
    model: ModelDescription | None = None
    dtype: str | None = None
    logprobs_mode: str | None = None
    features: tuple[str, ...] = ()


def listed(values: Iterable[object]) -> str:
    """For people: `a, b, c`, or `none`."""
    return ", ".join(map(str, values)) or "none"


def slot_preference(component: Component, machine: MachineDescription | None) -> int | None:
    """Rank for `auto`; None = never. Weight sources all rank 0: the files at hand decide, not a preference."""
    if isinstance(component.capabilities, WeightsCapabilities):
        return 0
    by_device = getattr(component.capabilities, "preference", {})
    if machine is None:
        return max(by_device.values(), default=None)
    rank: int | None = by_device.get(machine.device_type)
    return rank


def slot_refusals(component: Component, needs: SlotNeeds, *, is_auto: bool) -> list[Refusal]:
    """Every refused predicate of a model, weights or sampler component; none for slots without capabilities."""
    capabilities = component.capabilities
    if isinstance(capabilities, ModelCapabilities):
        return [*_model_refusals(capabilities, needs)]
    if isinstance(capabilities, WeightsCapabilities):
        return [*_weights_refusals(capabilities, needs, is_auto)]
    if isinstance(capabilities, LinearCapabilities):
        return [*_linear_refusals(capabilities, needs)]
    if isinstance(capabilities, SamplerCapabilities):
        return [*_sampler_refusals(capabilities, needs)]
    return []


def _model_refusals(capabilities: ModelCapabilities, needs: SlotNeeds) -> Iterator[Refusal]:
    if needs.machine is not None:
        yield from device_refusals(capabilities.devices, needs.machine)
    if needs.dtype is not None:
        yield from dtype_refusals(capabilities.dtypes, needs.dtype)
    accepted = capabilities.architectures
    if needs.model is not None and accepted is not None and needs.model.architecture not in accepted:
        yield Refusal(
            predicate="architecture",
            wanted=needs.model.architecture,
            offered=listed(accepted),
            change="choose another model component, or a model of these architectures",
        )


def _linear_refusals(capabilities: LinearCapabilities, needs: SlotNeeds) -> Iterator[Refusal]:
    if needs.machine is not None:
        yield from device_refusals(capabilities.devices, needs.machine)
    if needs.dtype is not None:
        yield from dtype_refusals(capabilities.dtypes, needs.dtype)


def _weights_refusals(capabilities: WeightsCapabilities, needs: SlotNeeds, is_auto: bool) -> Iterator[Refusal]:
    if needs.model is None and is_auto:
        yield Refusal(
            predicate="suffix", wanted="the files of a known model", offered=listed(capabilities.suffixes), change="set model.source"
        )
        return
    suffix = None if needs.model is None else needs.model.weights_suffix
    if not capabilities.needs_files:
        if is_auto:
            yield Refusal(
                predicate="needs_files",
                wanted="parameters from files",
                offered="parameters made up: never chosen by auto",
                change="name it under weights.use",
            )
    elif needs.model is not None and suffix not in capabilities.suffixes:
        yield Refusal(
            predicate="suffix",
            wanted=suffix or "no weight files",
            offered=listed(capabilities.suffixes),
            change=f"point model.source to files ending in {' or '.join(capabilities.suffixes) or 'what it reads'}",
        )


def _sampler_refusals(capabilities: SamplerCapabilities, needs: SlotNeeds) -> Iterator[Refusal]:
    if needs.machine is not None:
        yield from device_refusals(capabilities.devices, needs.machine)
    if needs.logprobs_mode is not None and needs.logprobs_mode not in capabilities.logprobs_modes:
        change = f'sampler.logprobs_mode = "{capabilities.logprobs_modes[0]}"' if capabilities.logprobs_modes else "choose another sampler"
        yield Refusal(predicate="logprobs_mode", wanted=needs.logprobs_mode, offered=listed(capabilities.logprobs_modes), change=change)
    yield from feature_refusals(capabilities, needs.features)


def device_refusals(devices: Collection[str], machine: MachineDescription) -> Iterator[Refusal]:
    """Is the machine's device type claimed?"""
    if machine.device_type not in devices:
        change = " or ".join(f'device = "{device}"' for device in devices) or "choose another component"
        yield Refusal(predicate="device", wanted=machine.device_type, offered=listed(devices), change=change)


def dtype_refusals(dtypes: Collection[str], dtype: str) -> Iterator[Refusal]:
    """Is the model's dtype claimed?"""
    if dtype not in dtypes:
        change = " or ".join(f'model.dtype = "{offered}"' for offered in dtypes) or "choose another component"
        yield Refusal(predicate="dtype", wanted=dtype, offered=listed(dtypes), change=change)


def feature_refusals(capabilities: Any, features: Iterable[str]) -> Iterator[Refusal]:
    """Is each named boolean capability claimed?"""
    for feature in dict.fromkeys(features):
        if not getattr(capabilities, feature, False):
            yield Refusal(predicate=feature, wanted="yes", offered="no", change=f"choose a component that claims {feature}")
