"""Records of the built-in attention backends. Imports no torch."""

from __future__ import annotations

from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl
from slotwise_backends import reference_capabilities, torch_sdpa_capabilities


class Reference:
    """Entry point `reference`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="attention",
            name="reference",
            implementation="slotwise_backends.reference:ReferenceAttention",
            api=">=1.0,<2",
            summary="The definition of correct: one request at a time, in float64.",
            capabilities=reference_capabilities.CAPABILITIES,
            options=reference_capabilities.ReferenceOptions,
        )


class TorchSdpa:
    """Entry point `torch_sdpa`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="attention",
            name="torch_sdpa",
            implementation="slotwise_backends.torch_sdpa:TorchSdpaAttention",
            api=">=1.0,<2",
            summary="torch's scaled_dot_product_attention over gathered keys; the CPU default.",
            capabilities=torch_sdpa_capabilities.CAPABILITIES,
            options=torch_sdpa_capabilities.TorchSdpaOptions,
        )
