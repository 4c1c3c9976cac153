"""Is the record that a hook returned usable here? Checks the record alone, never the implementation.

What this file does not know: how the record was obtained, and who else is installed.
"""

from __future__ import annotations

import re
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from slotwise.plugin.component import Component
from slotwise.plugin.contract import api_mismatch, capabilities_record
from slotwise.plugin.discovery import EntryPointInfo
from slotwise.plugin.states import PluginStatus, RecordFault

if TYPE_CHECKING:
    from packaging.requirements import Requirement

IMPLEMENTATION: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def check_record(record: Any, info: EntryPointInfo) -> Component:
    """`record`, once everything about it was found in order. Raises RecordFault with status, cause and cure."""
    component = _check_type(record)
    _check_identity(component, info)
    _check_api(component)
    _check_implementation(component)
    _check_capabilities(component)
    _check_options(component)
    _check_requires(component)
    return component


def _invalid(cause: str, cure: str) -> RecordFault:
    return RecordFault(PluginStatus.INVALID, cause, cure)


def _check_type(record: Any) -> Component:
    if isinstance(record, Component):
        return record
    found = "None" if record is None else f"an object of type {type(record).__name__}"
    raise _invalid(f"its hook slotwise_component returned {found}, not a Component.", "return slotwise.plugin.component.Component(...).")


def _check_identity(component: Component, info: EntryPointInfo) -> None:
    wanted, found = info.key, f"{component.slot}:{component.name}"
    if wanted != found:
        raise _invalid(
            f'its record says "{found}", its entry point "{wanted}".',
            "let the record's slot and name equal the entry point's group and name; each entry point needs an object of its own.",
        )


def _check_api(component: Component) -> None:
    from packaging.specifiers import InvalidSpecifier

    try:
        mismatch = api_mismatch(component)
    except (InvalidSpecifier, TypeError, AttributeError) as error:
        raise _invalid(f"api = {component.api!r} is not a version specifier.", 'write a PEP 440 range such as ">=1.0,<2".') from error
    if mismatch is not None:
        raise RecordFault(PluginStatus.INCOMPATIBLE, *mismatch)


def _check_implementation(component: Component) -> None:
    if not isinstance(component.implementation, str) or IMPLEMENTATION.fullmatch(component.implementation) is None:
        raise _invalid(f"implementation = {component.implementation!r} is no class's address.", 'write "package.module:Class".')


def _check_capabilities(component: Component) -> None:
    wanted = capabilities_record(component.slot)
    if wanted is not None and not isinstance(component.capabilities, wanted):
        raise _invalid(
            f"capabilities are of type {type(component.capabilities).__name__}; the slot {component.slot} wants {wanted.__name__}.",
            f"give the record capabilities={wanted.__name__}(...) from {wanted.__module__}.",
        )


def _check_options(component: Component) -> None:
    if component.options is None:
        return
    from pydantic import BaseModel

    if not (isinstance(component.options, type) and issubclass(component.options, BaseModel)):
        raise _invalid(f"options = {component.options!r} is not a pydantic model class.", "give a subclass of ComponentOptions, or None.")
    if component.options.model_config.get("extra") != "forbid":
        raise _invalid(
            f"its options model {component.options.__name__} accepts unknown keys.",
            "subclass slotwise.config.engine_config.ComponentOptions, which forbids them.",
        )


def _check_requires(component: Component) -> None:
    missing = [text for text in _requirements(component) if _is_missing(text)]
    if missing:
        quoted = " ".join(f'"{text}"' for text in missing)
        raise RecordFault(
            PluginStatus.UNAVAILABLE,
            f"it requires {', '.join(_with_installed(text) for text in missing)}.",
            f"python -m pip install {quoted}",
            component,
        )
    if component.unavailable is not None:
        cause, cure = component.unavailable
        raise RecordFault(PluginStatus.UNAVAILABLE, cause, cure, component)


def _requirements(component: Component) -> tuple[str, ...]:
    requires: Any = component.requires
    if isinstance(requires, (tuple, list)) and all(isinstance(text, str) for text in requires):
        return tuple(requires)
    raise _invalid(f"requires = {requires!r} is not a tuple of strings.", 'write requires=("distribution>=1.0",).')


def _parsed(text: str) -> Requirement:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(text)
    except InvalidRequirement as error:
        raise _invalid(f'requires names "{text}", which is no requirement: {error}.', "write it as PEP 508 says.") from error


def _installed_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _is_missing(text: str) -> bool:
    requirement = _parsed(text)
    if requirement.marker is not None and not requirement.marker.evaluate():
        return False
    installed = _installed_version(requirement.name)
    return installed is None or not requirement.specifier.contains(installed, prereleases=True)


def _with_installed(text: str) -> str:
    installed = _installed_version(_parsed(text).name)
    return f'"{text}" ({"not installed" if installed is None else f"installed is {installed}"})'
