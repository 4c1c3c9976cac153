from __future__ import annotations

from collections.abc import Callable

import pytest

from slotwise.plugin.discovery import EntryPointInfo
from slotwise.plugin.selection import PluginSelection

MakeInfo = Callable[..., EntryPointInfo]


@pytest.mark.parametrize("entry", ["x", "scheduler:x", "My_Dist", "my-dist", "my.dist"])
def test_an_entry_names_a_component_or_a_distribution(make_info: MakeInfo, entry: str) -> None:
    info = make_info("scheduler:x", distribution="my-dist")
    assert PluginSelection(block=(entry,)).refusal(info) is not None
    assert PluginSelection(allow=(entry,)).refusal(info) is None


@pytest.mark.parametrize("entry", ["attention:x", "scheduler:y", "y", "other-dist", "scheduler"])
def test_an_entry_for_something_else_does_not_match(make_info: MakeInfo, entry: str) -> None:
    info = make_info("scheduler:x", distribution="my-dist")
    assert PluginSelection(block=(entry,)).refusal(info) is None
    assert PluginSelection(allow=(entry,)).refusal(info) is not None


def test_without_lists_everything_may_be_used(make_info: MakeInfo) -> None:
    assert PluginSelection().refusal(make_info()) is None


def test_an_empty_allow_list_leaves_only_built_ins(make_info: MakeInfo) -> None:
    selection = PluginSelection(allow=())
    assert selection.refusal(make_info()) is not None
    assert selection.refusal(make_info(is_builtin=True)) is None


def test_block_wins_over_allow_and_over_being_built_in(make_info: MakeInfo) -> None:
    assert PluginSelection(allow=("x",), block=("x",)).refusal(make_info()) is not None
    assert PluginSelection(block=("x",)).refusal(make_info(is_builtin=True)) is not None


def test_a_refusal_names_the_list_and_the_cure(make_info: MakeInfo) -> None:
    cause, cure = PluginSelection(block=("x",)).refusal(make_info()) or ("", "")
    assert "plugins.block" in cause
    assert 'remove "x"' in cure
    cause, cure = PluginSelection(allow=()).refusal(make_info()) or ("", "")
    assert "plugins.allow" in cause
    assert '"scheduler:x"' in cure


def test_entries_that_match_nothing_are_reported_with_the_nearest_name(make_info: MakeInfo) -> None:
    selection = PluginSelection(allow=("dist-x",), block=("schedler:x",))
    (unmatched,) = selection.unmatched([make_info("scheduler:x", distribution="dist-x")])
    assert (unmatched.key, unmatched.entry) == ("plugins.block", "schedler:x")
    assert 'Did you mean "scheduler:x"?' in unmatched.message
