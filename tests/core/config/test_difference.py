from __future__ import annotations

from slotwise.config.difference import differences
from slotwise.config.loading import LoadedConfig, load_config
from slotwise.config.values import MASK, shown_tree, shown_values


def loaded(*set_values: str) -> LoadedConfig:
    return load_config(set_values=set_values, environ={})


def test_only_differing_keys_with_both_origins() -> None:
    (found,) = differences(loaded("seed=1", "kv_cache.block_size=16"), loaded("seed=2"))
    assert found.to_dict() == {
        "key": "seed",
        "a": {"value": 1, "is_set": True, "origin": {"kind": "command_line", "where": "--set seed"}},
        "b": {"value": 2, "is_set": True, "origin": {"kind": "command_line", "where": "--set seed"}},
    }


def test_equal_configurations_do_not_differ() -> None:
    assert differences(loaded("seed=0"), loaded()) == []


def test_options_and_parts_that_one_side_lacks() -> None:
    found = differences(loaded("attention=x", "attention.options.a=1"), loaded("attention=x", "attention.per_kind.full=y"))
    assert [(item.key, item.a.is_set, item.b.is_set) for item in found] == [
        ("attention.options.a", True, False),
        ("attention.per_kind.full.use", False, True),
    ]


def test_a_switch_differs_from_a_number() -> None:
    assert [item.key for item in differences(loaded("attention.options.a=1"), loaded("attention.options.a=true"))] == [
        "attention.options.a"
    ]


def test_secrets_are_masked_wherever_values_are_shown() -> None:
    one = loaded("server.api_key=hunter2")
    assert shown_values(one.config)["server.api_key"] == MASK
    assert shown_tree(one.config)["server"]["api_key"] == MASK
    (found,) = differences(one, loaded("server.api_key=other"))
    assert "hunter2" not in str(found)
    assert shown_values(loaded().config)["server.api_key"] is None
