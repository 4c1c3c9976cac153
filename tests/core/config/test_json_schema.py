from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from slotwise.config.json_schema import config_schema
from slotwise.plugin.registry import ComponentRegistry

MakeRegistry = Callable[..., ComponentRegistry]


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(references(value) for value in node.values()))
    return set().union(*(references(value) for value in node)) if isinstance(node, list) else set()


def test_options_follow_the_named_component(make_registry: MakeRegistry) -> None:
    schema = config_schema(make_registry("attention:mine", "attention:other", "observer:log"))
    rules = schema["$defs"]["AttentionConfigTable"]["allOf"]
    assert [rule["if"]["properties"]["use"]["const"] for rule in rules] == ["mine", "other"]
    options = rules[0]["then"]["properties"]["options"]
    assert set(options["properties"]) == {"window", "is_eager"}
    assert options["additionalProperties"] is False
    assert schema["$defs"]["ComponentChoice"]["anyOf"][1]["allOf"] == rules
    assert set(schema["$defs"]["ObserversConfigTable"]["properties"]["options"]["properties"]) == {"log"}


def test_a_slot_inside_another_section_has_its_rules_there(make_registry: MakeRegistry) -> None:
    schema = config_schema(make_registry("kv_cache:mine", "eviction:first"))
    table = schema["$defs"]["EvictionConfigTable"]
    assert [rule["if"]["properties"]["use"]["const"] for rule in table["allOf"]] == ["first"]
    assert schema["$defs"]["KVCacheConfigTable"]["properties"]["eviction"]["$ref"] == "#/$defs/EvictionConfig"
    assert {"type": "string"} in schema["$defs"]["EvictionConfig"]["anyOf"]


def test_slots_may_be_plain_text(make_registry: MakeRegistry) -> None:
    schema = config_schema(make_registry())
    for name in ("AttentionConfig", "SchedulerConfig", "ModelConfig"):
        assert {"type": "string"} in schema["$defs"][name]["anyOf"]
    assert "anyOf" not in schema["$defs"]["ServerConfig"]


def test_every_reference_leads_somewhere_and_it_is_json(make_registry: MakeRegistry) -> None:
    schema = json.loads(json.dumps(config_schema(make_registry("kv_cache:mine"))))
    assert {reference.removeprefix("#/$defs/") for reference in references(schema)} <= set(schema["$defs"])


def test_a_broken_component_is_left_out(make_registry: MakeRegistry) -> None:
    from slotwise.plugin.discovery import EntryPointInfo

    broken = EntryPointInfo(slot="scheduler", name="broken", value="no_such_module_here", distribution="x", version="1")
    schema = config_schema(ComponentRegistry(entry_points=[broken]))
    assert schema["$defs"]["SchedulerConfigTable"]["allOf"] == []
