"""JSON Schema of a configuration file, for editors: the tree, and the options of every installed component.

`if use == name then options are that component's`. What this file does not know: which component fits where.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slotwise.config.engine_config import EngineConfig, ObserversConfig, Section, slot_path
from slotwise.interfaces.version import CONTRACT_VERSIONS
from slotwise.plugin.component import Component
from slotwise.plugin.registry import ComponentRegistry

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def config_schema(registry: ComponentRegistry) -> dict[str, Any]:
    """The schema. Loads the record of every installed component that may be used; a broken one is left out."""
    schema = EngineConfig.model_json_schema()
    definitions = schema["$defs"]
    components = {slot: tuple(_components(registry, slot)) for slot in CONTRACT_VERSIONS}
    for section in _sections():
        _allow_shorthand(definitions, section)
    for slot, found in components.items():
        if (reference := _section_of(schema, slot)) is not None:
            _rule_options(definitions, reference, slot, found)
    _rule_observers(definitions, components["observer"])
    return {"$schema": DIALECT, **schema}


def _components(registry: ComponentRegistry, slot: str) -> Iterator[Component]:
    for state in registry.load_slot(slot):
        if state.status == "loaded" and state.component is not None:
            yield state.component


def _section_of(schema: dict[str, Any], slot: str) -> dict[str, Any] | None:
    """The reference to the slot's section, wherever in the tree it stands; None for slots without one."""
    *outer, last = slot_path(slot)
    properties = schema["properties"]
    for key in outer:
        properties = schema["$defs"][f"{_target(properties[key])}Table"]["properties"]
    found: dict[str, Any] | None = properties.get(last)
    return found


def _sections(outer: type[Section] = EngineConfig) -> Iterator[type[Section]]:
    for field in outer.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield field.annotation
            yield from _sections(field.annotation)


def _allow_shorthand(definitions: dict[str, Any], section: type[Section]) -> None:
    """Turn the definition into `text, or the table`; the table itself moves to `<name>Table`."""
    name = section.__name__
    if section.shorthand is None:
        return
    definitions[f"{name}Table"] = definitions[name]
    bare: list[dict[str, Any]] = [{"type": "string"}]
    if issubclass(section, ObserversConfig):
        bare.append({"type": "array", "items": {"type": "string"}})
    description = definitions[name].get("description", "")
    definitions[name] = {"description": description, "anyOf": [*bare, {"$ref": f"#/$defs/{name}Table"}]}


def _rule_options(definitions: dict[str, Any], reference: dict[str, Any], slot: str, components: tuple[Component, ...]) -> None:
    """Add the rules to the slot's table, and to its parts where it has some."""
    name = _target(reference)
    table = definitions[f"{name}Table"]
    rules = [_rule(definitions, slot, component) for component in components]
    table["allOf"] = rules
    table["properties"]["use"]["examples"] = ["auto", *(component.name for component in components)]
    if slot == "attention":
        choice = definitions["ComponentChoice"]
        definitions["ComponentChoice"] = {"anyOf": [{"type": "string"}, {**choice, "allOf": rules}]}


def _rule(definitions: dict[str, Any], slot: str, component: Component) -> dict[str, Any]:
    return {
        "if": {"properties": {"use": {"const": component.name}}, "required": ["use"]},
        "then": {"properties": {"options": _options(definitions, slot, component)}},
    }


def _rule_observers(definitions: dict[str, Any], components: tuple[Component, ...]) -> None:
    options = definitions["ObserversConfigTable"]["properties"]["options"]
    options["properties"] = {component.name: _options(definitions, "observer", component) for component in components}


def _options(definitions: dict[str, Any], slot: str, component: Component) -> dict[str, Any]:
    if component.options is None:
        return {"type": "object", "maxProperties": 0}
    prefix = f"{slot}.{component.name}."
    schema = component.options.model_json_schema(ref_template=f"#/$defs/{prefix}{{model}}")
    for name, definition in schema.pop("$defs", {}).items():
        definitions[prefix + name] = definition
    return {"description": component.summary, **schema}


def _target(reference: dict[str, Any]) -> str:
    found = reference.get("$ref") or reference["allOf"][0]["$ref"]
    return str(found).rsplit("/", 1)[-1]
