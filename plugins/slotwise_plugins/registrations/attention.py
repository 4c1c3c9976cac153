"""Records of the built-in attention backends. Imports no torch."""

from __future__ import annotations

from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl
from slotwise_backends import flex_capabilities, reference_capabilities, torch_sdpa_capabilities
from slotwise_backends.cpu_attention import capabilities as cpu_capabilities
from slotwise_backends.flash_attention import capabilities as flash_attention_capabilities
from slotwise_backends.flashinfer_attention import capabilities as flashinfer_capabilities
from slotwise_backends.triton_attention import capabilities as triton_capabilities


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


class Triton:
    """Entry point `triton`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="attention",
            name="triton",
            implementation="slotwise_backends.triton_attention.backend:TritonAttention",
            api=">=1.1,<2",
            summary="Our own Triton kernels: one for prefill and decode, split where rows are few and long.",
            capabilities=triton_capabilities.CAPABILITIES,
            options=triton_capabilities.TritonOptions,
            requires=("triton>=3.6",),
        )


class Flex:
    """Entry point `flex`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="attention",
            name="flex",
            implementation="slotwise_backends.flex:FlexAttention",
            api=">=1.1,<2",
            summary="torch's FlexAttention: every rule as a few lines of Python; easy to extend.",
            capabilities=flex_capabilities.CAPABILITIES,
            options=flex_capabilities.FlexOptions,
        )


class FlashAttention:
    """Entry point `flash_attention`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="attention",
            name="flash_attention",
            implementation="slotwise_backends.flash_attention.backend:FlashAttention",
            api=">=1.1,<2",
            summary="The FlashAttention library, version 2, 3 or 4.",
            capabilities=flash_attention_capabilities.CAPABILITIES,
            options=flash_attention_capabilities.FlashAttentionOptions,
            unavailable=flash_attention_capabilities.missing_library(),
        )


class FlashInfer:
    """Entry point `flashinfer`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="attention",
            name="flashinfer",
            implementation="slotwise_backends.flashinfer_attention.backend:FlashInferAttention",
            api=">=1.1,<2",
            summary="The FlashInfer library, planned once a step.",
            capabilities=flashinfer_capabilities.CAPABILITIES,
            options=flashinfer_capabilities.FlashInferOptions,
            requires=("flashinfer-python>=0.6.13",),
        )


class Cpu:
    """Entry point `cpu`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="attention",
            name="cpu",
            implementation="slotwise_backends.cpu_attention.backend:CpuAttention",
            api=">=1.1,<2",
            summary="Native kernels in C for the instruction set at hand; the CPU default where a compiler was there at install.",
            capabilities=cpu_capabilities.CAPABILITIES,
            unavailable=cpu_capabilities.missing_library(),
        )
