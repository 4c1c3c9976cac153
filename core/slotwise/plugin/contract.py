"""The contract of each slot: does a record speak this core's version, and is its implementation the class the slot wants?

What this file does not know: what the methods compute; the conformance kit tests that.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any, Final

from slotwise.errors import ComponentUnavailableError, ContractError
from slotwise.interfaces.version import CONTRACT_CHANGES, CONTRACT_VERSIONS
from slotwise.plugin.component import Component
from slotwise.plugin.signatures import method_mismatches
from slotwise.plugin.states import LoadedComponent

BASE_CLASSES: Final[dict[str, str]] = {
    "attention": "slotwise.interfaces.attention:AttentionBackend",
    "scheduler": "slotwise.interfaces.scheduler:SchedulerPolicy",
    "kv_cache": "slotwise.interfaces.kv_cache:KVCacheManager",
    "eviction": "slotwise.interfaces.eviction:EvictionPolicy",
    "sampler": "slotwise.interfaces.sampler:Sampler",
    "logits_processor": "slotwise.interfaces.logits_processor:LogitsProcessor",
    "grammar": "slotwise.interfaces.grammar:GrammarBackend",
    "proposer": "slotwise.interfaces.proposer:Proposer",
    "model": "slotwise.interfaces.model:Model",
    "linear": "slotwise.interfaces.linear:LinearBackend",
    "weights": "slotwise.interfaces.model:Weights",
    "observer": "slotwise.interfaces.observer:Observer",
}
"""Slot -> the class its implementations subclass."""

CAPABILITIES: Final[dict[str, str]] = {
    "attention": "slotwise.interfaces.attention:AttentionCapabilities",
    "sampler": "slotwise.interfaces.sampler:SamplerCapabilities",
    "logits_processor": "slotwise.interfaces.logits_processor:LogitsProcessorCapabilities",
    "grammar": "slotwise.interfaces.grammar:GrammarCapabilities",
    "proposer": "slotwise.interfaces.proposer:ProposerCapabilities",
    "model": "slotwise.interfaces.model:ModelCapabilities",
    "linear": "slotwise.interfaces.linear:LinearCapabilities",
    "weights": "slotwise.interfaces.model:WeightsCapabilities",
}
"""Slot -> the record of its capabilities, for slots that have one."""


def import_object(address: str) -> Any:
    """The object at `"package.module:Name"`. Raises what the import raises."""
    module, _, names = address.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


def base_class(slot: str) -> type:
    """The class that implementations of `slot` subclass."""
    found: type = import_object(BASE_CLASSES[slot])
    return found


def capabilities_record(slot: str) -> type | None:
    """Type of the slot's capabilities, None where it has none."""
    address = CAPABILITIES.get(slot)
    return None if address is None else import_object(address)


def api_mismatch(component: Component) -> tuple[str, str] | None:
    """(cause, cure) if the range the component was written for leaves out this core's contract. Raises InvalidSpecifier."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    current = CONTRACT_VERSIONS[component.slot]
    wanted = SpecifierSet(component.api)
    if wanted.contains(current, prereleases=True):
        return None
    changes = [
        f"{version}: {change}"
        for version, change in CONTRACT_CHANGES[component.slot].items()
        if not wanted.contains(version, prereleases=True)
    ]
    cause = (
        f'it was written for "{component.api}" of the {component.slot} contract; this Slotwise speaks {current}.'
        f" What changed: {'; '.join(changes) or 'nothing that this version knows of'}."
    )
    if any(Version(bound) > Version(current) for bound in _lower_bounds(component.api)):
        return cause, "upgrade slotwise, or install an older version of the component's distribution."
    return cause, "upgrade the component's distribution, or ask its authors to widen `api` once it was adapted."


def _lower_bounds(specifier: str) -> list[str]:
    return re.findall(r"(?:>=|==|~=|>)\s*([0-9][0-9a-z.]*[0-9a-z])", specifier)


def import_implementation(loaded: LoadedComponent) -> type[Any]:
    """The implementation's class, imported now and checked against the slot's contract.

    Raises ComponentUnavailableError, chained, if the import fails; ContractError if what is found is not a full subclass of the slot's
    base class, a method cannot be called as the contract calls it, or its `capabilities` differ from the record's.
    """
    component = loaded.component
    label = f"{loaded.info.key} of {loaded.info.origin}"
    found = _import_class(label, component.implementation)
    base = base_class(component.slot)
    faults = [*_class_faults(found, base)] or [*method_mismatches(found, base), *_capability_faults(found, base, component)]
    if component.slot == "observer" and isinstance(found, type):
        from slotwise.plugin.observers import hook_faults

        faults += hook_faults(found)
    if faults:
        raise ContractError(
            f"{label}: {component.implementation} does not fulfil the {component.slot} contract {CONTRACT_VERSIONS[component.slot]}"
            f" ({base.__module__}.{base.__qualname__}): {'; '.join(faults)}."
        )
    implementation: type[Any] = found
    return implementation


def _import_class(label: str, address: str) -> Any:
    try:
        return import_object(address)
    except (Exception, SystemExit) as error:
        raise ComponentUnavailableError(
            f"{label} cannot be used: importing its implementation {address} raised {type(error).__name__}: {error}."
            f" `slotwise plugins doctor` shows what is missing; reinstalling {label.rpartition(' of ')[2]} may cure it."
        ) from error


def _class_faults(found: Any, base: type) -> list[str]:
    if not isinstance(found, type):
        return [f"wanted a class, found {found!r}"]
    if not issubclass(found, base):
        return [f"{found.__qualname__} is not a subclass of {base.__qualname__}"]
    if inspect.isabstract(found):
        return [f"not implemented: {', '.join(sorted(getattr(found, '__abstractmethods__', ())))}"]
    return []


def _capability_faults(found: type, base: type, component: Component) -> list[str]:
    if "capabilities" not in base.__annotations__ and not hasattr(base, "capabilities"):
        return []
    stated = getattr(found, "capabilities", None)
    if stated == component.capabilities:
        return []
    return [f"class attribute capabilities is {stated!r}, the record says {component.capabilities!r}"]
