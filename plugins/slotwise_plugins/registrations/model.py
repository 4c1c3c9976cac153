"""Records of the built-in model components. Imports no torch."""

from __future__ import annotations

from slotwise.interfaces.model import ModelCapabilities
from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl
from slotwise_plugins.models.fused.families import FAMILIES


class Fused:
    """Entry point `fused`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="model",
            name="fused",
            implementation="slotwise_plugins.models.fused.decoder:FusedModel",
            api=">=1.4,<2",
            summary="Llama-like decoders in one flat loop: packed matrices, fused element-wise kernels.",
            capabilities=ModelCapabilities(
                architectures=tuple(FAMILIES),
                devices=("cpu", "cuda"),
                dtypes=("float32", "bfloat16"),
                uses_linear=True,
                takes_blocks=True,
                preference={"cpu": 50},
            ),
            requires=("transformers>=5.17",),
        )


class Transformers:
    """Entry point `transformers`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="model",
            name="transformers",
            implementation="slotwise_plugins.models.transformers_model:TransformersModel",
            api=">=1.0,<2",
            summary="Any decoder-only causal LM of the transformers library, through its attention interface.",
            capabilities=ModelCapabilities(
                devices=("cpu", "cuda"),
                dtypes=("float32", "bfloat16", "float16"),
                preference={"cpu": 10, "cuda": 10},
            ),
            requires=("transformers>=5.17",),
        )
