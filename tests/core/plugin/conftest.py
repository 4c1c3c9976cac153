"""Fake installed distributions, and records to resolve."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from slotwise.plugin.component import Component
from slotwise.plugin.discovery import EntryPointInfo, discover_entry_points
from slotwise.plugin.registry import ComponentRegistry
from slotwise.plugin.states import LoadedComponent

GOOD_MODULE = """
    from slotwise.plugin.component import Component
    from slotwise.plugin.hookspecs import hookimpl

    @hookimpl
    def slotwise_component():
        return Component(slot={slot!r}, name={name!r}, implementation={implementation!r}, api=">=1.0,<2", summary="for tests")
"""


class FakeSite:
    """A site-packages folder of our own, on sys.path while the test runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def module(self, name: str, source: str) -> None:
        self.folder.joinpath(f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        importlib.invalidate_caches()

    def distribution(
        self, name: str, entry_points: Mapping[str, Mapping[str, str]], *, version: str = "1.0", folder: str | None = None
    ) -> None:
        """Metadata as pip writes it. entry_points: group -> name -> value."""
        info = self.folder / (folder or f"{name.replace('-', '_')}-{version}.dist-info")
        info.mkdir()
        info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        lines = [
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items()) for group, entries in entry_points.items()
        ]
        info.joinpath("entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
        importlib.invalidate_caches()

    def plugin(self, name: str, source: str | None = None, *, slot: str = "scheduler", distribution: str | None = None) -> None:
        """A module `plugin_<name>` and a distribution that registers it; by default a sound one."""
        text = GOOD_MODULE.format(slot=slot, name=name, implementation=f"plugin_{name}_impl:Policy") if source is None else source
        self.module(f"plugin_{name}", text)
        self.distribution(distribution or f"dist-{name}", {f"slotwise.{slot}": {name: f"plugin_{name}"}})

    def entry_points(self) -> tuple[EntryPointInfo, ...]:
        return discover_entry_points([str(self.folder)])

    def registry(self, **settings: Any) -> ComponentRegistry:
        """A registry that knows this folder alone."""
        return ComponentRegistry(entry_points=self.entry_points(), **settings)


@pytest.fixture
def make_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], FakeSite]]:
    before = set(sys.modules)

    def make(name: str = "site") -> FakeSite:
        site = FakeSite(tmp_path / name)
        monkeypatch.syspath_prepend(str(site.folder))
        return site

    yield make
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def site(make_site: Callable[[str], FakeSite]) -> FakeSite:
    return make_site("site")


@pytest.fixture
def make_info() -> Callable[..., EntryPointInfo]:
    def make(
        key: str = "scheduler:x", *, distribution: str = "dist-x", version: str = "1.0", value: str = "mod_x", **rest: Any
    ) -> EntryPointInfo:
        slot, _, name = key.partition(":")
        return EntryPointInfo(slot=slot, name=name, value=value, distribution=distribution, version=version, **rest)

    return make


@pytest.fixture
def make_loaded(make_info: Callable[..., EntryPointInfo]) -> Callable[..., LoadedComponent]:
    def make(key: str = "scheduler:x", **fields: Any) -> LoadedComponent:
        slot, _, name = key.partition(":")
        defaults = {"implementation": "mod_x:X", "api": ">=1.0,<2", "summary": "for tests"}
        return LoadedComponent(component=Component(slot=slot, name=name, **(defaults | fields)), info=make_info(key))

    return make
