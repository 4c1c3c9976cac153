"""`transformers` model: any decoder-only causal LM of the transformers library, with its attention answered by the engine.

All requests lie in one row [1, num_tokens] without padding; positions tell the model where each token stands, and the attention call
leaves the library through `attention_bridge`.

What this file does not know: KV caches, backends, file formats.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from slotwise.errors import ModelLoadError
from slotwise.interfaces.attention import AttentionLayer
from slotwise.interfaces.model import ForwardBatch, Model, ModelOutput, ModelSetup, ProgressCallback, Weights
from slotwise_plugins.models.attention_bridge import HANDLER_ARGUMENT, IMPLEMENTATION_NAME, NOT_THROUGH_INTERFACE, EngineAttention
from slotwise_plugins.models.attention_trace import trace_attention
from slotwise_plugins.models.fixed_rope import fix_rope
from slotwise_plugins.models.parameter_loading import ParameterLoader, materialize


class TransformersModel(Model):
    """A transformers model. Making one is cheap: it lives on the meta device until `load`."""

    def __init__(self, setup: ModelSetup) -> None:
        """Raises ModelLoadError if transformers has no causal LM for the config, or attends in a way that cannot be served."""
        super().__init__(setup)
        self.model = build_on_meta(setup)
        self._layers, self._layer_indices = trace_attention(self.model)
        self._selects_rows = "logits_to_keep" in inspect.signature(type(self.model).forward).parameters

    @property
    def vocab_size(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        return self._layers

    def load(self, weights: Weights, progress: ProgressCallback | None = None) -> None:
        materialize(self.model, self.setup.device)
        with torch.no_grad():
            ParameterLoader(self.model).load(weights, progress)

    def forward(self, batch: ForwardBatch) -> ModelOutput:
        facts: dict[str, Any] = {HANDLER_ARGUMENT: EngineAttention(batch.attention, self._layer_indices)}
        if self._selects_rows:
            facts["logits_to_keep"] = batch.logits_indices
        with self._caught_hidden_states(batch.wants_hidden_states) as caught:
            logits = self.model(
                input_ids=batch.input_ids[None], position_ids=batch.positions[None], use_cache=False, return_dict=True, **facts
            ).logits[0]
        return ModelOutput(
            logits=logits if self._selects_rows else logits.index_select(0, batch.logits_indices),
            hidden_states=caught[0] if caught else None,
        )

    @property
    def gives_hidden_states(self) -> bool:
        return True

    def embed_tokens(self, token_ids: torch.Tensor) -> torch.Tensor:
        embeddings: torch.Tensor = self.model.get_input_embeddings()(token_ids)
        return embeddings

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model.get_output_embeddings()(hidden_states)
        return logits

    @contextmanager
    def _caught_hidden_states(self, wanted: bool) -> Iterator[list[torch.Tensor]]:
        """What the decoder hands to the output head, [num_tokens, hidden_size], in a list that the forward fills."""
        caught: list[torch.Tensor] = []
        if not wanted:
            yield caught
            return
        hook = self.model.get_decoder().register_forward_hook(lambda _module, _args, output: caught.append(output[0][0]))
        try:
            yield caught
        finally:
            hook.remove()


def build_on_meta(setup: ModelSetup) -> Any:
    """The library's model without memory for its parameters. Raises ModelLoadError."""
    config = copy.deepcopy(setup.hf_config)
    if _scales_queries_by_place(config.get_text_config()):
        raise ModelLoadError(
            f"{type(config).__name__} scales queries by their place in the row (attn_temperature_tuning), which is not their position "
            "where requests are packed. It can be served only if it was made with attn_temperature_tuning false."
        )
    fix_rope(config.get_text_config(), setup.max_model_len)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                config, attn_implementation=IMPLEMENTATION_NAME, dtype=getattr(torch, setup.dtype), trust_remote_code=False
            )
    except (ValueError, ImportError, AttributeError, TypeError, KeyError) as error:
        name = (getattr(config, "architectures", None) or [type(config).__name__])[0]
        if isinstance(error, KeyError) and error.args == (IMPLEMENTATION_NAME,):  # a table of attention classes of the model's own
            raise ModelLoadError(
                f"{name} cannot be run by the `transformers` model component: {NOT_THROUGH_INTERFACE}. Use a model of another "
                "architecture, or a model component made for this one."
            ) from error
        raise ModelLoadError(
            f"transformers cannot build a causal language model for {name} ({type(error).__name__}: {error}). "
            "Check config.json, or install a transformers release that knows the architecture."
        ) from error
    # A packed row has no padding; transformers would search each batch for padding tokens, and find real tokens of that id.
    model.config.pad_token_id = None
    return model.eval().requires_grad_(False)


def _scales_queries_by_place(config: Any) -> bool:
    """Whether a layer counts along the row instead of using positions: Llama 4's temperature tuning, in its layers without RoPE."""
    if not getattr(config, "attn_temperature_tuning", False):
        return False
    uses_rope = getattr(config, "no_rope_layers", None)  # 1 for a layer with RoPE, whatever the name says
    return not uses_rope or not all(uses_rope)
