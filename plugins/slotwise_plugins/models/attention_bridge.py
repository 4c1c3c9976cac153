"""The one attention function that transformers calls for every model run by Slotwise, and what it does with the call.

A model gets an `AttentionHandler` with each forward, as the keyword argument `slotwise_attention`, which transformers hands on to
every attention call untouched; so no state lives here, and several models may run in one process.

What this file does not know: backends, caches, how a model is built.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final, Protocol

import torch
from transformers import AttentionInterface

from slotwise.errors import ModelLoadError
from slotwise.interfaces.model import AttentionContext

IMPLEMENTATION_NAME: Final = "slotwise"
"""Value of `attn_implementation` that leads here."""
HANDLER_ARGUMENT: Final = "slotwise_attention"
NOT_THROUGH_INTERFACE: Final = "it does not attend through transformers' attention interface"


class AttentionHandler(Protocol):
    """Answers one layer's attention call."""

    def attend(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, facts: dict[str, Any]
    ) -> torch.Tensor:
        """Returns [1, num_tokens, num_heads, head_dim].

        query: [1, num_heads, num_tokens, head_dim]; key, value: [1, num_kv_heads, num_tokens, head_dim], after rotary embedding. facts: the
        remaining keyword arguments of the call.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class EngineAttention:
    """Hands each call to the engine's context."""

    context: AttentionContext
    layer_indices: dict[torch.nn.Module, int]
    """Attention module -> `AttentionLayer.index`."""

    def attend(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, facts: dict[str, Any]
    ) -> torch.Tensor:
        sinks = facts.get("s_aux")
        output = self.context.attend(
            self.layer_indices[module],
            query[0].transpose(0, 1),
            key[0].transpose(0, 1),
            value[0].transpose(0, 1),
            sinks=None if sinks is None else sinks.float(),
        )
        return output[None]


def slotwise_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    **facts: Any,
) -> tuple[torch.Tensor, None]:
    """Attention function in transformers' convention. Visibility follows from the engine's metadata.

    Raises ModelLoadError for a mask: the model then wants other tokens hidden than the engine knows of. Also where the model keeps its
    forward's arguments from its attention calls, and so leaves out the handler.
    """
    if attention_mask is not None:
        raise ModelLoadError(f"{type(module).__name__} makes an attention mask of its own, which the engine's attention does not take")
    handler: AttentionHandler | None = facts.pop(HANDLER_ARGUMENT, None)
    if handler is None:
        raise ModelLoadError(f"{NOT_THROUGH_INTERFACE}: {type(module).__name__} does not hand on the arguments of the forward")
    return handler.attend(module, query, key, value, facts), None


AttentionInterface.register(IMPLEMENTATION_NAME, slotwise_attention)
# No mask function is registered under the name: transformers then builds no mask, which over the packed row would cost its length squared.
