"""Collected by `pytest --pyargs slotwise.testing --component SLOT:NAME`: one test per case and component."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slotwise.errors import SlotwiseError
from slotwise.testing.cases import PREFIX, case_names, kit_for
from slotwise.testing.component_options import parse_options

if TYPE_CHECKING:
    from slotwise.testing.conformance import ComponentConformance


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All cases of all components named on the command line."""
    components = metafunc.config.getoption("--component")
    if not components:
        raise pytest.UsageError("slotwise.testing examines installed components: say which with --component SLOT:NAME.")
    try:
        options = parse_options(metafunc.config.getoption("--component-option"))
        kits = {text: kit_for(*_slot_and_name(text), options=options) for text in components}
    except SlotwiseError as error:
        raise pytest.UsageError(str(error)) from error
    cases = [(text, kit, name) for text, kit in kits.items() for name in case_names(kit)]
    metafunc.parametrize(("kit", "case"), [(kit, name) for _, kit, name in cases], ids=[f"{text}-{name}" for text, _, name in cases])


def test_conforms(kit: type[ComponentConformance], case: str) -> None:
    """One case of the slot's contract."""
    getattr(kit(), PREFIX + case)()


def _slot_and_name(text: str) -> tuple[str, str]:
    slot, colon, name = text.partition(":")
    if not (slot and colon and name):
        raise pytest.UsageError(f"--component {text} does not name a component: write SLOT:NAME, as in scheduler:fcfs.")
    return slot, name
