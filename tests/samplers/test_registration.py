from __future__ import annotations

from slotwise.plugin.contract import import_implementation
from slotwise.plugin.registry import ComponentRegistry


def test_torch_is_registered_and_fulfils_the_contract():
    loaded = ComponentRegistry().get("sampler", "torch")
    implementation = import_implementation(loaded)
    assert implementation.capabilities == loaded.component.capabilities
    assert loaded.component.capabilities.speculative
