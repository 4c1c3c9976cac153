"""Every installed attention backend that claims `cuda`, under the same kit as on the CPU, on the card."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slotwise.plugin.registry import ComponentRegistry
from slotwise.plugin.states import PluginStatus
from slotwise.testing.cases import PREFIX, case_names, kit_for


def backends_for_cuda() -> Iterator[pytest.param]:
    """Names of backends; those that cannot be loaded are skipped with their cause."""
    for state in ComponentRegistry().load_slot("attention"):
        if state.status is not PluginStatus.LOADED or state.component is None:
            yield pytest.param(state.name, marks=pytest.mark.skip(reason=f"{state.status}: {state.cause}"))
        elif "cuda" in state.component.capabilities.devices:
            yield pytest.param(state.name)


@pytest.mark.parametrize("case", case_names(kit_for("attention", "reference")))
@pytest.mark.parametrize("name", backends_for_cuda())
def test_backend_conforms_on_the_card(name, case):
    getattr(kit_for("attention", name, device="cuda")(), PREFIX + case)()
