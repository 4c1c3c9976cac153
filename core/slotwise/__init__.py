"""Slotwise: a modular LLM inference engine. Every part sits in a slot and can be swapped by name.

Names are loaded on first use, so that `import slotwise` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotwise.engine.async_llm import AsyncLLM
    from slotwise.engine.llm import LLM
    from slotwise.engine.outputs import (
        CompletionOutput,
        EmbeddingRequestOutput,
        Logprob,
        RequestOutput,
        ScoringRequestOutput,
        SequenceScore,
    )
    from slotwise.pooling_params import PoolingParams
    from slotwise.sampling_params import OutputKind, SamplingParams
    from slotwise.structured_outputs import StructuredOutputsParams

_HOMES = {
    "LLM": "slotwise.engine.llm",
    "AsyncLLM": "slotwise.engine.async_llm",
    "SamplingParams": "slotwise.sampling_params",
    "OutputKind": "slotwise.sampling_params",
    "RequestOutput": "slotwise.engine.outputs",
    "CompletionOutput": "slotwise.engine.outputs",
    "Logprob": "slotwise.engine.outputs",
    "EmbeddingRequestOutput": "slotwise.engine.outputs",
    "ScoringRequestOutput": "slotwise.engine.outputs",
    "SequenceScore": "slotwise.engine.outputs",
    "PoolingParams": "slotwise.pooling_params",
    "StructuredOutputsParams": "slotwise.structured_outputs",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "Logprob",
    "OutputKind",
    "PoolingParams",
    "RequestOutput",
    "SamplingParams",
    "ScoringRequestOutput",
    "SequenceScore",
    "StructuredOutputsParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("slotwise")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'slotwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
