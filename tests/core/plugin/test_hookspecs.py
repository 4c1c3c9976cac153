"""Each hook is documented, and has a test here that is named after it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from slotwise.interfaces.observer import EngineInfo, Observer, ObserverSetup
from slotwise.plugin import hookspecs
from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl
from slotwise.plugin.loading import new_plugin_manager

HOOKS = {name: value for name, value in vars(hookspecs).items() if hasattr(value, "slotwise_spec")}


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_says_when_how_often_what_it_returns_and_what_an_error_does(name: str) -> None:
    text = inspect.getdoc(HOOKS[name]) or ""
    for heading in ("When:", "How often:", "Returns:", "Errors:"):
        assert heading in text, f"{name} lacks {heading!r}"


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_tested(name: str) -> None:
    assert f"test_{name}" in globals(), f"write test_{name} in this file"


def test_markers_and_manager_share_the_projects_name() -> None:
    assert hookspecs.hookspec.project_name == hookspecs.hookimpl.project_name == new_plugin_manager().project_name == "slotwise"


def test_slotwise_component() -> None:
    wanted = Component(slot="scheduler", name="x", implementation="m:C", api=">=1", summary="")

    class Plugin:
        @staticmethod
        @hookimpl
        def slotwise_component() -> Component:
            return wanted

    manager = new_plugin_manager()
    manager.register(Plugin)
    assert manager.hook.slotwise_component() is wanted


class Listener(Observer):
    def __init__(self) -> None:
        super().__init__(ObserverSetup())
        self.heard: list[Any] = []

    @hookimpl
    def slotwise_engine_started(self, info: EngineInfo) -> None:
        self.heard.append(info)

    @hookimpl
    def slotwise_step_finished(self, event: Any) -> None:
        self.heard.append(event)

    @hookimpl
    def slotwise_request_finished(self, event: Any) -> None:
        self.heard.append(event)

    @hookimpl
    def slotwise_engine_stopped(self) -> None:
        self.heard.append("stopped")


def heard(hook: str, **arguments: Any) -> list[Any]:
    listener = Listener()
    manager = new_plugin_manager()
    manager.register(listener)
    getattr(manager.hook, hook)(**arguments)
    return listener.heard


def test_slotwise_engine_started() -> None:
    info = EngineInfo(model="m", device="cpu", dtype="float32", max_model_len=9, block_size=4, num_blocks=8)
    assert heard("slotwise_engine_started", info=info) == [info]


def test_slotwise_step_finished() -> None:
    assert heard("slotwise_step_finished", event="event") == ["event"]


def test_slotwise_request_finished() -> None:
    assert heard("slotwise_request_finished", event="event") == ["event"]


def test_slotwise_engine_stopped() -> None:
    assert heard("slotwise_engine_stopped") == ["stopped"]
