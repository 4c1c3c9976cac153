from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.plugin.discovery import EntryPointInfo, discover_entry_points, sort_entries

FakeSite = Any
"""`FakeSite` of conftest.py."""


def test_lists_names_distributions_and_versions_without_importing_the_plugin(site: FakeSite) -> None:
    site.plugin("x", "raise RuntimeError('imported')", distribution="My.Dist_x")
    (found,) = site.entry_points()
    assert found == EntryPointInfo(slot="scheduler", name="x", value="plugin_x", distribution="My.Dist_x", version="1.0")
    assert found.key == "scheduler:x"
    assert "plugin_x" not in sys.modules


def test_groups_that_are_no_slot_are_left_out(site: FakeSite) -> None:
    site.distribution("d", {"slotwise.cli": {"a": "m:a"}, "slotwise.nothing": {"b": "m"}, "console_scripts": {"slotwise.scheduler": "m:c"}})
    assert site.entry_points() == ()


def test_the_same_folder_behind_a_symlink_counts_once(site: FakeSite, tmp_path: Path) -> None:
    site.plugin("x")
    link = tmp_path / "link"
    link.symlink_to(site.folder, target_is_directory=True)
    assert len(discover_entry_points([str(link), str(site.folder), str(link)])) == 1


def test_one_distribution_in_two_folders_counts_once_and_the_first_on_the_path_wins(make_site: Callable[[str], FakeSite]) -> None:
    editable, wheel = make_site("editable"), make_site("wheel")
    editable.distribution("some-dist", {"slotwise.scheduler": {"x": "here"}}, version="2.0")
    wheel.distribution("Some_Dist", {"slotwise.scheduler": {"x": "there", "y": "there"}}, version="1.0")
    both = [str(editable.folder), str(wheel.folder)]
    assert [(info.name, info.value) for info in discover_entry_points(both)] == [("x", "here")]
    assert {info.value for info in discover_entry_points(both[::-1])} == {"there"}


@pytest.mark.parametrize(("old", "new"), [("1.9", "1.10"), ("1.0rc1", "1.0"), ("not a version", "0.1")])
def test_of_two_records_of_a_distribution_in_one_folder_the_newest_counts(site: FakeSite, old: str, new: str) -> None:
    for version in (new, old):
        site.distribution("d", {"slotwise.scheduler": {"x": "m"}}, version=version, folder=f"d-{version}.dist-info")
    assert [info.version for info in site.entry_points()] == [new]


def test_two_distributions_with_one_name_are_both_kept(site: FakeSite) -> None:
    site.distribution("b", {"slotwise.scheduler": {"x": "m"}})
    site.distribution("a", {"slotwise.scheduler": {"x": "m"}})
    assert [info.distribution for info in site.entry_points()] == ["a", "b"]


def test_metadata_without_a_name_is_passed_over(site: FakeSite) -> None:
    site.distribution("a", {"slotwise.scheduler": {"x": "m"}})
    site.folder.joinpath("a-1.0.dist-info", "METADATA").write_text("garbage\n")
    site.distribution("b", {"slotwise.scheduler": {"y": "m"}})
    assert [info.name for info in site.entry_points()] == ["y"]


def test_only_the_projects_own_distribution_is_built_in(site: FakeSite) -> None:
    site.distribution("slotwise", {"slotwise.scheduler": {"fcfs": "m"}})
    site.distribution("slotwise-extra", {"slotwise.scheduler": {"x": "m"}})
    assert [(info.name, info.is_builtin) for info in site.entry_points()] == [("fcfs", True), ("x", False)]


INFOS = st.builds(
    EntryPointInfo,
    slot=st.sampled_from(["attention", "scheduler"]),
    name=st.sampled_from("abc"),
    value=st.sampled_from("mn"),
    distribution=st.sampled_from(["d", "e"]),
    version=st.just("1"),
)


@given(st.sets(INFOS).flatmap(lambda infos: st.tuples(st.just(infos), st.permutations(sorted(infos, key=repr)))))
def test_the_order_does_not_depend_on_the_order_of_finding(case: tuple[set[EntryPointInfo], list[EntryPointInfo]]) -> None:
    infos, permuted = case
    assert sort_entries(permuted) == sort_entries(infos)


def test_listing_imports_neither_plugins_nor_heavy_libraries(site: FakeSite) -> None:
    for index in range(40):
        site.plugin(f"p{index:02}", "import heavy_module")
    site.module("heavy_module", "raise SystemExit(3)")
    code = (
        "import sys\nfrom slotwise.plugin.registry import ComponentRegistry\n"
        "names = [state.name for state in ComponentRegistry().states('scheduler')]\n"
        "assert len([name for name in names if name.startswith('p') and name != 'priority']) == 40, names\n"
        "bad = [name for name in sys.modules if name.partition('.')[0] in ('torch', 'pydantic', 'transformers', 'rich', 'typer')"
        " or name.startswith('plugin_') or name == 'heavy_module']\n"
        "assert not bad, bad"
    )
    environment = os.environ | {"PYTHONPATH": str(site.folder)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
