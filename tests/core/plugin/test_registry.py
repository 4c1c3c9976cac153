from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

from slotwise.errors import (
    ComponentConflictError,
    ComponentNotFoundError,
    ComponentUnavailableError,
    ConfigError,
    ContractError,
    PluginError,
)
from slotwise.interfaces.version import CONTRACT_VERSIONS
from slotwise.plugin.registry import ComponentRegistry
from slotwise.plugin.states import PluginStatus

FakeSite = Any
"""`FakeSite` of conftest.py."""

HEADER = "from slotwise.plugin.component import Component\nfrom slotwise.plugin.hookspecs import hookimpl\n"
RECORD = 'Component(slot="scheduler", name={name!r}, implementation="m:C", api={api!r}, summary="s", requires={requires!r})'
CLASS = "class {cls}:\n    @staticmethod\n    @hookimpl\n    def slotwise_component():\n        return {record}\n"


def hook(body: str) -> str:
    return f"{HEADER}@hookimpl\ndef slotwise_component():\n    {body}\n"


def record(name: str, *, api: str = ">=1.0,<2", requires: Any = ()) -> str:
    return hook("return " + RECORD.format(name=name, api=api, requires=requires))


BAD = {
    "import_error": ("import module_that_nobody_has", PluginStatus.BROKEN, "module_that_nobody_has"),
    "syntax_error": ("def (", PluginStatus.BROKEN, "SyntaxError"),
    "raises": (hook("raise ValueError('boom')"), PluginStatus.BROKEN, "ValueError: boom"),
    "exits": (hook("raise SystemExit(4)"), PluginStatus.BROKEN, "SystemExit"),
    "exits_at_import": ("raise SystemExit('bye')", PluginStatus.BROKEN, "SystemExit: bye"),
    "returns_none": (hook("return None"), PluginStatus.INVALID, "None"),
    "wrong_type": (hook("return {'slot': 'scheduler'}"), PluginStatus.INVALID, "type dict"),
    "wrong_name": (record("other"), PluginStatus.INVALID, "scheduler:other"),
    "no_hook": ("value = 1", PluginStatus.INVALID, "no implementation of the hook"),
    "unknown_hook": (f"{HEADER}@hookimpl\ndef slotwise_componet(): ...\n", PluginStatus.INVALID, "slotwise_componet"),
    "wrong_arguments": (f"{HEADER}@hookimpl\ndef slotwise_component(registry): ...\n", PluginStatus.INVALID, "registry"),
    "old_contract": (record("old_contract", api=">=0.1,<1"), PluginStatus.INCOMPATIBLE, ">=0.1,<1"),
    "lacks_distribution": (
        record("lacks_distribution", requires=("a-distribution-nobody-has>=2",)),
        PluginStatus.UNAVAILABLE,
        "a-distribution-nobody-has>=2",
    ),
}


@pytest.fixture
def bad_site(site: FakeSite) -> FakeSite:
    """Case 109: two good ones around everything that can go wrong."""
    site.plugin("good1")
    for name, (source, _, _) in BAD.items():
        site.plugin(name, source)
    site.plugin("good2")
    return site


def test_one_broken_plugin_does_not_break_the_rest(bad_site: FakeSite) -> None:
    states = {state.name: state for state in bad_site.registry().load_slot("scheduler")}
    assert {name: states[name].status for name in BAD} == {name: status for name, (_, status, _) in BAD.items()}
    assert states["good1"].status is states["good2"].status is PluginStatus.LOADED
    for name, (_, _, cause) in BAD.items():
        assert cause in states[name].cause, name
        assert states[name].cure, name


def test_each_defect_is_reported_once_with_name_distribution_and_cause(bad_site: FakeSite, caplog: pytest.LogCaptureFixture) -> None:
    registry = bad_site.registry()
    with caplog.at_level(logging.WARNING, "slotwise"):
        registry.load_slot("scheduler")
        registry.load_slot("scheduler")
    messages = [entry.getMessage() for entry in caplog.records]
    defects = [name for name, (_, status, _) in BAD.items() if status is not PluginStatus.UNAVAILABLE]
    assert len(messages) == len(defects)
    for name in defects:
        (message,) = [text for text in messages if text.startswith(f"scheduler:{name} of ")]
        assert f"dist-{name} 1.0" in message
        assert BAD[name][2] in message


def test_registrations_of_failing_plugins_are_rolled_back(bad_site: FakeSite) -> None:
    registry = bad_site.registry()
    registry.load_slot("scheduler")
    assert {name.partition(" ")[0] for name, _ in registry._manager.list_name_plugin()} == {"scheduler:good1", "scheduler:good2"}


@pytest.mark.parametrize("name", BAD)
def test_asking_for_a_failed_component_names_and_chains_the_original_failure(bad_site: FakeSite, name: str) -> None:
    wanted = ContractError if BAD[name][1] is PluginStatus.INCOMPATIBLE else ComponentUnavailableError
    registry = bad_site.registry()
    with pytest.raises(wanted, match=f"dist-{name} 1.0") as raised:
        registry.get("scheduler", name)
    assert BAD[name][2] in str(raised.value)
    assert "Cure:" in str(raised.value)
    if BAD[name][1] is PluginStatus.BROKEN:
        assert raised.value.__cause__ is not None
        assert type(raised.value.__cause__).__name__ in str(raised.value)
    assert registry.get("scheduler", "good1").component.name == "good1"


def test_a_missing_distribution_has_the_pip_command_as_cure(bad_site: FakeSite) -> None:
    state = bad_site.registry().state("scheduler", "lacks_distribution")
    assert state.cure == 'python -m pip install "a-distribution-nobody-has>=2"'


def test_keyboard_interrupt_passes_through(site: FakeSite) -> None:
    site.plugin("x", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        site.registry().load_slot("scheduler")


def test_keyboard_interrupt_in_the_hook_leaves_no_registration(site: FakeSite) -> None:
    site.plugin("x", hook("raise KeyboardInterrupt"))
    registry = site.registry()
    with pytest.raises(KeyboardInterrupt):
        registry.get("scheduler", "x")
    assert registry._manager.list_name_plugin() == []


def test_get_imports_that_plugin_and_no_other(site: FakeSite) -> None:
    site.plugin("wanted")
    site.plugin("other", "raise RuntimeError")
    loaded = site.registry().get("scheduler", "wanted")
    assert loaded.info.distribution == "dist-wanted"
    assert "plugin_wanted" in sys.modules
    assert "plugin_other" not in sys.modules
    assert "plugin_wanted_impl" not in sys.modules


def test_a_class_with_a_static_hook_works_like_a_module(site: FakeSite) -> None:
    classes = "".join(CLASS.format(cls=name.upper(), record=RECORD.format(name=name, api=">=1", requires=())) for name in "ab")
    site.module("two_in_one", HEADER + classes)
    site.distribution("two", {"slotwise.scheduler": {"a": "two_in_one:A", "b": "two_in_one:B"}})
    assert [state.status for state in site.registry().load_slot("scheduler")] == [PluginStatus.LOADED] * 2


def test_loading_is_idempotent(site: FakeSite) -> None:
    site.module("counting", "calls = []\n" + record("x").replace("    return", "    calls.append(1)\n    return"))
    site.distribution("d", {"slotwise.scheduler": {"x": "counting"}})
    registry = site.registry()
    first = registry.get("scheduler", "x")
    registry.load_slot("scheduler")
    assert registry.get("scheduler", "x") == first
    assert sys.modules["counting"].calls == [1]


def test_a_second_registry_in_the_same_process_loads_again_without_complaint(site: FakeSite) -> None:
    site.plugin("x")
    assert site.registry().get("scheduler", "x") == site.registry().get("scheduler", "x")


def test_two_entry_points_of_one_object_leave_the_one_it_describes(site: FakeSite) -> None:
    site.module("one", record("x"))
    site.distribution("d", {"slotwise.scheduler": {"w": "one", "x": "one", "y": "one"}})
    states = {state.name: state for state in site.registry().load_slot("scheduler")}
    assert states["x"].status is PluginStatus.LOADED
    assert states["w"].status is states["y"].status is PluginStatus.INVALID


def test_two_distributions_with_one_name_are_an_error_naming_both_and_the_cure(site: FakeSite, caplog: pytest.LogCaptureFixture) -> None:
    site.plugin("x")
    site.distribution("aaa", {"slotwise.scheduler": {"x": "somewhere"}}, version="2.5")
    registry = site.registry()
    with pytest.raises(ComponentConflictError, match=r"aaa 2\.5") as raised:
        registry.get("scheduler", "x")
    assert "dist-x 1.0" in str(raised.value)
    assert 'plugins.block = ["dist-x"]' in str(raised.value)
    assert {state.status for state in registry.load_slot("scheduler")} == {PluginStatus.CONFLICT}
    assert "plugin_x" not in sys.modules


def test_blocking_one_distribution_ends_the_conflict(site: FakeSite) -> None:
    site.plugin("x")
    site.distribution("aaa", {"slotwise.scheduler": {"x": "somewhere"}})
    registry = site.registry(block=("aaa",))
    assert registry.get("scheduler", "x").info.distribution == "dist-x"
    assert registry.states()[0].status is PluginStatus.BLOCKED


def test_the_same_site_packages_twice_on_the_path_is_no_conflict(site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site.plugin("x")
    link = site.folder.parent / "link"
    link.symlink_to(site.folder, target_is_directory=True)
    monkeypatch.syspath_prepend(str(link))
    assert ComponentRegistry().get("scheduler", "x").info.distribution == "dist-x"


def test_a_blocked_component_is_never_imported_and_says_which_list(site: FakeSite) -> None:
    site.plugin("x", "raise RuntimeError")
    registry = site.registry(block=("scheduler:x",))
    assert registry.load_slot("scheduler")[0].status is PluginStatus.BLOCKED
    with pytest.raises(ComponentUnavailableError, match=r"plugins\.block"):
        registry.get("scheduler", "x")
    assert "plugin_x" not in sys.modules
    assert registry.names("scheduler") == ()


def test_an_unknown_name_gets_the_nearest_one_and_the_list(site: FakeSite) -> None:
    site.plugin("longest_prefix")
    site.plugin("fair")
    with pytest.raises(ComponentNotFoundError, match='Did you mean "longest_prefix"') as raised:
        site.registry().get("scheduler", "longestprefix")
    assert "fair, longest_prefix" in str(raised.value)


def test_a_name_of_another_slot_is_pointed_out(site: FakeSite) -> None:
    site.plugin("x")
    with pytest.raises(ComponentNotFoundError, match="component of the slot scheduler"):
        site.registry().get("attention", "x")


def test_an_unknown_slot_gets_the_nearest_one_and_the_list(site: FakeSite) -> None:
    with pytest.raises(ComponentNotFoundError, match='Did you mean "scheduler"') as raised:
        site.registry().get("schedular", "x")
    assert "kv_cache" in str(raised.value)


def test_allow_and_block_entries_that_match_nothing_are_warned_of(site: FakeSite, caplog: pytest.LogCaptureFixture) -> None:
    site.plugin("x")
    with caplog.at_level(logging.WARNING, "slotwise"):
        site.registry(allow=("dist-x",), block=("dits-x",))
    (entry,) = caplog.records
    assert 'plugins.block names "dits-x"' in entry.getMessage()
    assert 'Did you mean "dist-x"?' in entry.getMessage()


def test_strict_makes_an_unmatched_entry_an_error(site: FakeSite) -> None:
    with pytest.raises(ConfigError) as raised:
        site.registry(allow=("nothing",), strict=True)
    assert raised.value.key == "plugins.allow"


@pytest.mark.parametrize("name", [name for name, (_, status, _) in BAD.items() if status is not PluginStatus.UNAVAILABLE])
def test_strict_makes_a_defect_an_error_though_another_was_chosen(site: FakeSite, name: str) -> None:
    site.plugin("good1", slot="kv_cache")
    site.plugin(name, BAD[name][0])
    registry = site.registry(strict=True)
    for _ in range(2):
        with pytest.raises(PluginError, match=f"dist-{name}") as raised:
            registry.get("kv_cache", "good1")
        assert (raised.value.__cause__ is not None) >= (BAD[name][1] is PluginStatus.BROKEN)


def test_strict_names_every_defect(bad_site: FakeSite) -> None:
    with pytest.raises(PluginError) as raised:
        bad_site.registry(strict=True).load_slot("scheduler")
    for name, (_, status, cause) in BAD.items():
        assert (f"dist-{name} " in str(raised.value) and cause in str(raised.value)) == (status is not PluginStatus.UNAVAILABLE), name


def test_strict_accepts_sound_blocked_and_unavailable_components(site: FakeSite) -> None:
    site.plugin("good1")
    site.plugin("exits", BAD["exits"][0])
    site.plugin("lacks_distribution", BAD["lacks_distribution"][0])
    assert site.registry(strict=True, block=("exits",)).get("scheduler", "good1").component.name == "good1"


def test_an_unavailable_component_keeps_its_record(site: FakeSite) -> None:
    site.plugin("lacks_distribution", BAD["lacks_distribution"][0])
    state = site.registry().state("scheduler", "lacks_distribution")
    assert state.status is PluginStatus.UNAVAILABLE
    assert state.component is not None
    assert state.component.name == "lacks_distribution"


def test_candidates_of_a_name_are_that_component_alone(site: FakeSite) -> None:
    site.plugin("x")
    site.plugin("y", "raise RuntimeError")
    registry = site.registry()
    assert [state.name for state in registry.candidates("scheduler", "x")] == ["x"]
    assert "plugin_y" not in sys.modules
    assert [state.name for state in registry.candidates("scheduler", "auto")] == ["x", "y"]


def test_a_state_is_json_able(site: FakeSite) -> None:
    site.plugin("x", "raise RuntimeError('boom')")
    found = site.registry().state("scheduler", "x").to_dict()
    assert found["status"] == "broken"
    assert found["distribution"] == "dist-x"
    assert "boom" in found["cause"]


def test_every_built_in_registers_through_the_projects_entry_points(make_site: Callable[[str], FakeSite]) -> None:
    states = [state for state in ComponentRegistry().states() if state.info.is_builtin]
    assert {state.slot for state in states} == set(CONTRACT_VERSIONS)
