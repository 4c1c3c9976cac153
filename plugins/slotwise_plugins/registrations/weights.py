"""Records of the built-in weight sources. Imports no torch."""

from __future__ import annotations

from slotwise.interfaces.model import WeightsCapabilities
from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl

_API = ">=1.0,<2"


class Safetensors:
    """Entry point `safetensors`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="weights",
            name="safetensors",
            implementation="slotwise_plugins.weights.safetensors_weights:SafetensorsWeights",
            api=_API,
            summary="Safetensors files, single or sharded.",
            capabilities=WeightsCapabilities(suffixes=(".safetensors",)),
            requires=("safetensors>=0.5",),
        )


class Gguf:
    """Entry point `gguf`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="weights",
            name="gguf",
            implementation="slotwise_plugins.weights.gguf_weights:GgufWeights",
            api=_API,
            summary="A GGUF file, dequantised while loading.",
            capabilities=WeightsCapabilities(suffixes=(".gguf",)),
            requires=("gguf>=0.17",),
        )


class Random:
    """Entry point `random`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="weights",
            name="random",
            implementation="slotwise_plugins.weights.random_weights:RandomWeights",
            api=_API,
            summary="Seeded random values, for tests and benchmarks.",
            capabilities=WeightsCapabilities(needs_files=False),
        )
