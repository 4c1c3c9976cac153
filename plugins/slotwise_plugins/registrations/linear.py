"""The built-in linear components. Importing this file imports no torch."""

from __future__ import annotations

from slotwise.interfaces.linear import LinearCapabilities
from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl
from slotwise_plugins.linear import capabilities
from slotwise_plugins.native.availability import missing_library


class Torch:
    """`torch`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="linear",
            name="torch",
            implementation="slotwise_plugins.linear.torch_linear:TorchLinear",
            api=">=1.0,<2",
            summary="Weights as they are, multiplied by torch, on any device.",
            capabilities=capabilities.TORCH,
        )


class Dense:
    """`dense`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return _native("dense", "DenseLinear", "Weights as they are, in panels, multiplied by C kernels.", capabilities.DENSE)


class Int8:
    """`int8`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return _native("int8", "Int8Linear", "8 bits and a scale for every 32 weights, multiplied as integers.", capabilities.QUANTISED)


class Int4:
    """`int4`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        summary = "4 bits, a scale and an offset for every 32 weights, multiplied as integers."
        return _native("int4", "Int4Linear", summary, capabilities.QUANTISED)


class Stored:
    """`stored`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        summary = "8 or 4 bits as a GGUF file has them; what is not quantised there stays as it is."
        return _native("stored", "StoredLinear", summary, capabilities.QUANTISED)


def _native(name: str, implementation: str, summary: str, claims: LinearCapabilities) -> Component:
    return Component(
        slot="linear",
        name=name,
        implementation=f"slotwise_plugins.linear.native_linear:{implementation}",
        api=">=1.1,<2",
        summary=summary,
        capabilities=claims,
        unavailable=missing_library(),
    )
