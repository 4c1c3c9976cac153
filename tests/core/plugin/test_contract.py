from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest

from slotwise.errors import ComponentUnavailableError, ContractError
from slotwise.interfaces import version
from slotwise.interfaces.attention import AttentionCapabilities
from slotwise.interfaces.version import CONTRACT_CHANGES, CONTRACT_VERSIONS
from slotwise.plugin.contract import BASE_CLASSES, CAPABILITIES, api_mismatch, base_class, capabilities_record, import_implementation
from slotwise.plugin.states import LoadedComponent

FakeSite = Any
MakeLoaded = Callable[..., LoadedComponent]

POLICY = """
    from slotwise.interfaces.scheduler import SchedulerPolicy, Victim

    class Sound(SchedulerPolicy):
        def order_key(self, request, now):
            return request.arrival_index

        def choose_victim(self, running, blocked):
            return Victim(request=running[-1], reason="last")

    class Unfinished(SchedulerPolicy):
        def order_key(self, request, now): ...

    class WrongSignature(Sound):
        def choose_victim(self, running): ...
        def order_key(self, request, now, weight): ...

    class Stranger:
        def order_key(self, request, now): ...

    instance = Sound.__new__(Sound)
    class Outer:
        Inner = Sound
"""

BACKEND = """
    from slotwise.interfaces.attention import AttentionBackend, AttentionCapabilities

    class Sound(AttentionBackend):
        capabilities = AttentionCapabilities(dtypes=("bfloat16",))
        def build_metadata(self, request): ...
        def forward(self, call): ...

    class Silent(AttentionBackend):
        def build_metadata(self, request): ...
        def forward(self, call): ...
"""

OBSERVER = """
    from slotwise.interfaces.observer import Observer
    from slotwise.plugin.hookspecs import hookimpl

    class Sound(Observer):
        @hookimpl
        def slotwise_step_finished(self, event): ...

    class Unmarked(Observer):
        def slotwise_step_finished(self, event): ...

    class WrongArgument(Observer):
        @hookimpl
        def slotwise_step_finished(self, step): ...

    class Misspelled(Observer):
        @hookimpl
        def slotwise_step_finnished(self, event): ...
"""


def test_every_slot_has_a_base_class_a_version_and_its_changes() -> None:
    assert set(BASE_CLASSES) == set(CONTRACT_VERSIONS) == set(CONTRACT_CHANGES)
    for slot, current in CONTRACT_VERSIONS.items():
        assert inspect.isclass(base_class(slot))
        assert current in CONTRACT_CHANGES[slot]
    assert set(CAPABILITIES) <= set(CONTRACT_VERSIONS)
    assert capabilities_record("attention") is AttentionCapabilities
    assert capabilities_record("scheduler") is None


@pytest.mark.parametrize("api", [">=1.0,<2", "~=1.0", "==1.*", ">=0.5", "", ">=1.0.dev0"])
def test_a_range_that_includes_this_contract_is_accepted(make_loaded: MakeLoaded, api: str) -> None:
    assert api_mismatch(make_loaded(api=api).component) is None


def test_a_component_for_an_older_contract_hears_both_versions_and_what_changed(
    make_loaded: MakeLoaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(version.CONTRACT_VERSIONS, "scheduler", "2.1")
    changes = {"1.0": "first version", "2.0": "admit takes a state", "2.1": "chunk_len added"}
    monkeypatch.setitem(version.CONTRACT_CHANGES, "scheduler", changes)
    cause, cure = api_mismatch(make_loaded(api=">=1.0,<2").component) or ("", "")
    assert '">=1.0,<2"' in cause
    assert "speaks 2.1" in cause
    assert "2.0: admit takes a state; 2.1: chunk_len added" in cause
    assert "first version" not in cause
    assert "upgrade the component's distribution" in cure


def test_a_component_for_a_newer_contract_is_told_to_upgrade_slotwise(make_loaded: MakeLoaded) -> None:
    _, cure = api_mismatch(make_loaded(api=">=7.2,<8").component) or ("", "")
    assert cure.startswith("upgrade slotwise")


@pytest.fixture
def modules(site: FakeSite) -> FakeSite:
    site.module("policies", POLICY)
    site.module("backends_of_test", BACKEND)
    site.module("observers_of_test", OBSERVER)
    site.module("broken_module", "import module_that_nobody_has")
    site.module("exiting_module", "raise SystemExit(2)")
    return site


@pytest.mark.parametrize(
    ("key", "address"),
    [("scheduler:x", "policies:Sound"), ("scheduler:x", "policies:Outer.Inner"), ("observer:x", "observers_of_test:Sound")],
)
def test_a_full_subclass_is_returned(modules: FakeSite, make_loaded: MakeLoaded, key: str, address: str) -> None:
    found = import_implementation(make_loaded(key, implementation=address))
    assert found.__name__ == "Sound"
    assert found.__module__ == address.partition(":")[0]


@pytest.mark.parametrize(
    ("key", "address", "texts"),
    [
        ("scheduler:x", "policies:Unfinished", ["not implemented: choose_victim"]),
        (
            "scheduler:x",
            "policies:WrongSignature",
            [
                "wanted choose_victim(self, running, blocked), found choose_victim(self, running)",
                "found order_key(self, request, now, weight)",
            ],
        ),
        ("scheduler:x", "policies:Stranger", ["not a subclass of SchedulerPolicy"]),
        ("scheduler:x", "policies:instance", ["wanted a class"]),
        ("observer:x", "observers_of_test:Unmarked", ["slotwise_step_finished lacks the mark"]),
        ("observer:x", "observers_of_test:WrongArgument", ["step"]),
        ("observer:x", "observers_of_test:Misspelled", ["slotwise_step_finnished"]),
    ],
)
def test_a_class_that_falls_short_is_refused_with_every_reason(
    modules: FakeSite, make_loaded: MakeLoaded, key: str, address: str, texts: list[str]
) -> None:
    with pytest.raises(ContractError) as raised:
        import_implementation(make_loaded(key, implementation=address))
    for text in [*texts, key, "dist-x 1.0", address]:
        assert text in str(raised.value)


@pytest.mark.parametrize(
    ("name", "claimed", "is_accepted"),
    [
        ("Sound", AttentionCapabilities(dtypes=("bfloat16",)), True),
        ("Sound", AttentionCapabilities(dtypes=("float32",)), False),
        ("Silent", AttentionCapabilities(), False),
    ],
)
def test_capabilities_of_class_and_record_must_be_equal(
    modules: FakeSite, make_loaded: MakeLoaded, name: str, claimed: AttentionCapabilities, is_accepted: bool
) -> None:
    loaded = make_loaded("attention:x", implementation=f"backends_of_test:{name}", capabilities=claimed)
    if is_accepted:
        assert import_implementation(loaded).__name__ == name
    else:
        with pytest.raises(ContractError, match="capabilities"):
            import_implementation(loaded)


@pytest.mark.parametrize(
    ("address", "cause"),
    [
        ("broken_module:X", ModuleNotFoundError),
        ("exiting_module:X", SystemExit),
        ("no_such_module:X", ModuleNotFoundError),
        ("policies:Nothing", AttributeError),
    ],
)
def test_a_failing_import_is_chained(modules: FakeSite, make_loaded: MakeLoaded, address: str, cause: type[BaseException]) -> None:
    with pytest.raises(ComponentUnavailableError, match=cause.__name__) as raised:
        import_implementation(make_loaded(implementation=address))
    assert isinstance(raised.value.__cause__, cause)
    assert address in str(raised.value)


def test_the_implementation_is_imported_only_now(modules: FakeSite, make_loaded: MakeLoaded) -> None:
    loaded = make_loaded(implementation="policies:Sound")
    assert "policies" not in sys.modules
    import_implementation(loaded)
    assert "policies" in sys.modules
