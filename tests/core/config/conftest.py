"""Plug-ins made up for a test: modules in a temporary folder, listed as entry points would list them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slotwise.plugin.discovery import EntryPointInfo
from slotwise.plugin.registry import ComponentRegistry

MODULE = """
from slotwise.config.engine_config import ComponentOptions
from slotwise.interfaces.attention import AttentionCapabilities
from slotwise.interfaces.logits_processor import LogitsProcessorCapabilities
from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl

class Options(ComponentOptions):
    window: int = 4
    is_eager: bool = False

@hookimpl
def slotwise_component():
    return Component(
        slot={slot!r},
        name={name!r},
        implementation="nowhere:Nothing",
        api=">=1.0,<2",
        summary="Made up.",
        capabilities=dict(attention=AttentionCapabilities(), logits_processor=LogitsProcessorCapabilities()).get({slot!r}),
        options=Options,
    )
"""


@pytest.fixture
def make_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ComponentRegistry]:
    """`make_registry("scheduler:mine", ...)`: a registry of those components, each with the options `window` and `is_eager`."""

    def make(*keys: str) -> ComponentRegistry:
        monkeypatch.syspath_prepend(str(tmp_path))
        infos = []
        for key in keys:
            slot, _, name = key.partition(":")
            module = f"made_up_{slot}_{name}"
            (tmp_path / f"{module}.py").write_text(MODULE.format(slot=slot, name=name))
            infos.append(EntryPointInfo(slot=slot, name=name, value=module, distribution="made-up", version="1.0"))
        return ComponentRegistry(entry_points=infos)

    return make


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """`write("a.toml", text)` -> path."""

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file
