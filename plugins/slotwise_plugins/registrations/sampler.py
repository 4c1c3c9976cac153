"""Built-in samplers."""

from __future__ import annotations

from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl
from slotwise_samplers import capabilities


class Torch:
    """The `torch` sampler."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="sampler",
            name="torch",
            implementation="slotwise_samplers.torch_sampler:TorchSampler",
            api=">=2.0,<3",
            summary="Plain torch operations on any device; every parameter, per-request seeds, drafts.",
            capabilities=capabilities.TORCH,
        )
