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


class Triton:
    """The `triton` sampler."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="sampler",
            name="triton",
            implementation="slotwise_samplers.triton_sampler:TritonSampler",
            api=">=2.0,<3",
            summary="One Triton kernel from logits to ids: truncation by bisection, no sort; otherwise as torch.",
            capabilities=capabilities.TRITON,
            requires=("triton>=3.6",),
        )


class FlashInfer:
    """The `flashinfer` sampler."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="sampler",
            name="flashinfer",
            implementation="slotwise_samplers.flashinfer_sampler:FlashInferSampler",
            api=">=2.0,<3",
            summary="Truncation by the FlashInfer library's kernels, which sort nothing; otherwise as torch.",
            capabilities=capabilities.FLASHINFER,
            requires=("flashinfer-python>=0.6.13",),
        )
