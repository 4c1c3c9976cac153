"""Whether the components a configuration names exist and take the options given. Imports only the modules of their records, no torch.

What this file does not know: whether they fit the model and the machine; the resolver decides that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slotwise.config.engine_config import NO_COMPONENT, EngineConfig, SlotConfig, slot_path, slot_section
from slotwise.config.origins import Origins
from slotwise.config.problems import Problem
from slotwise.errors import ConfigError, PluginError
from slotwise.interfaces.version import CONTRACT_VERSIONS
from slotwise.plugin.options import validate_options
from slotwise.plugin.registry import ComponentRegistry
from slotwise.plugin.states import LoadedComponent

AUTO = "auto"


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedComponent:
    """One component the configuration names."""

    slot: str
    part: str
    """A layer kind or phase of the attention slot, else empty."""
    name: str
    options: Mapping[str, Any]
    use_key: str
    """Dotted key of the name, `attention.per_phase.decode.use`."""
    options_key: str


def named_components(config: EngineConfig) -> Iterator[NamedComponent]:
    """Every component named, `auto` included, slot by slot and part by part."""
    for slot in CONTRACT_VERSIONS:
        section = slot_section(config, slot)
        if section is not None and section.use != NO_COMPONENT:
            yield _named(slot, section, ".".join(slot_path(slot)))
    for table in ("per_kind", "per_phase"):
        for part, choice in getattr(config.attention, table).items():
            yield _named("attention", choice, f"attention.{table}.{part}", part)
    yield from _listed("observer", "observers", config.observers.use, config.observers.options)
    yield from _listed("logits_processor", "logits_processors", config.logits_processors.names, config.logits_processors.options)


def _listed(slot: str, key: str, names: Iterable[str], options: Mapping[str, Mapping[str, Any]]) -> Iterator[NamedComponent]:
    """Of a slot that any number of components fill."""
    for name in names:
        yield NamedComponent(
            slot=slot, part="", name=name, options=options.get(name, {}), use_key=f"{key}.use", options_key=f"{key}.options.{name}"
        )


def _named(slot: str, section: SlotConfig, key: str, part: str = "") -> NamedComponent:
    return NamedComponent(
        slot=slot, part=part, name=section.use, options=section.options, use_key=f"{key}.use", options_key=f"{key}.options"
    )


def open_registry(config: EngineConfig) -> ComponentRegistry:
    """The registry as the configuration's `plugins` section wants it."""
    allow = None if config.plugins.allow is None else tuple(config.plugins.allow)
    return ComponentRegistry(allow=allow, block=tuple(config.plugins.block), strict=config.plugins.strict)


def check_components(config: EngineConfig, origins: Origins, registry: ComponentRegistry | None = None) -> list[Problem]:
    """Every fault of the named components and their options; empty if there is none.

    In strict mode one defective plug-in, named or not, is the only fault reported. Options beside `use = "auto"` are
    a fault if no component of the slot takes them all; the plan checks them again with the one that is chosen.
    """
    try:
        registry = open_registry(config) if registry is None else registry
        if config.plugins.strict:
            registry.load_slot("observer")
    except (PluginError, ConfigError) as error:
        key = getattr(error, "key", None) or "plugins.strict"
        return [Problem(key=key, where=origins.nearest(key).where, message=str(error))]
    problems = [problem for named in named_components(config) for problem in _check(named, origins, registry)]
    return [
        *problems,
        *_unused_options("observer", "observers", config.observers.use, config.observers.options, origins),
        *_unused_options(
            "logits processor", "logits_processors", config.logits_processors.names, config.logits_processors.options, origins
        ),
    ]


def _check(named: NamedComponent, origins: Origins, registry: ComponentRegistry) -> Iterator[Problem]:
    if named.name == AUTO:
        yield from _check_options_of_auto(named, origins, registry)
        return
    try:
        validate_options(registry.get(named.slot, named.name), named.options, prefix=named.options_key)
    except PluginError as error:
        yield Problem(key=named.use_key, where=origins.nearest(named.use_key).where, message=str(error))
    except ConfigError as error:
        yield _options_problem(named, origins, error)


def _check_options_of_auto(named: NamedComponent, origins: Origins, registry: ComponentRegistry) -> Iterator[Problem]:
    faults = []
    for state in registry.load_slot(named.slot) if named.options else ():
        if state.status == "loaded" and state.component is not None:
            try:
                validate_options(LoadedComponent(component=state.component, info=state.info), named.options, prefix=named.options_key)
            except ConfigError as error:
                faults.append(str(error))
            else:
                return
    if named.options:
        reasons = " ".join(faults)
        message = f"{named.use_key} is auto, and no component of the slot {named.slot} takes these options: name the one meant. {reasons}"
        yield Problem(key=named.options_key, where=origins.nearest(named.options_key).where, message=message.strip())


def _options_problem(named: NamedComponent, origins: Origins, error: ConfigError) -> Problem:
    key = error.key or named.options_key
    return Problem(key=key, where=origins.nearest(key).where, message=str(error))


def _unused_options(what: str, key: str, names: Iterable[str], options: Mapping[str, Any], origins: Origins) -> list[Problem]:
    used = set(names)
    return [
        Problem(
            key=f"{key}.options.{name}",
            where=origins.nearest(f"{key}.options.{name}").where,
            message=f"options for the {what} {name!r}, which {key}.use does not name: add it there or remove the options",
        )
        for name in options
        if name not in used
    ]
