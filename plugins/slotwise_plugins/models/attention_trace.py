"""Which attention layers a model has, found by watching one tiny forward without weights.

A traced call shows what the model really passes (heads, scale, window, soft cap, sinks), so no table of architectures is needed. What
cannot be served is refused here, when the model is built, with the layer and the reason.

What this file does not know: weights, engines, backends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from slotwise.errors import ModelLoadError
from slotwise.interfaces.attention import CHUNKED_LOCAL, FULL, SLIDING_WINDOW, AttentionLayer
from slotwise_plugins.models.attention_bridge import HANDLER_ARGUMENT

_TRACE_TOKENS = 3
_HARMLESS_FACTS = frozenset({"s_aux", "position_ids", "cache_position", "attention_mask"})
"""Tensor arguments that are served or change nothing; another one would be a rule we do not know (a position bias)."""
_LAYER_TYPES = {"full_attention": FULL, "sliding_attention": SLIDING_WINDOW, "chunked_attention": CHUNKED_LOCAL}


@dataclass(slots=True)
class _TracedCall:
    module: torch.nn.Module
    query_shape: torch.Size
    key_shape: torch.Size
    value_shape: torch.Size
    facts: dict[str, Any]


@dataclass(slots=True)
class _Recorder:
    """Attention handler that notes each call and answers with an empty tensor of the right shape."""

    calls: list[_TracedCall] = field(default_factory=list)

    def attend(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, facts: dict[str, Any]
    ) -> torch.Tensor:
        self.calls.append(_TracedCall(module, query.shape, key.shape, value.shape, facts))
        return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


def trace_attention(model: Any) -> tuple[tuple[AttentionLayer, ...], dict[torch.nn.Module, int]]:
    """The layers of a transformers model whose parameters are on the meta device, and module -> layer index.

    Raises ModelLoadError if the model attends in a way Slotwise cannot serve.
    """
    config = model.config.get_text_config()
    _check_architecture(model, config)
    recorder = _Recorder()
    tokens = torch.zeros(1, _TRACE_TOKENS, dtype=torch.long, device="meta")
    positions = torch.arange(_TRACE_TOKENS, device="meta")[None]
    try:
        with torch.inference_mode(), _traceable_experts(model), _nothing_kept(model):
            model(input_ids=tokens, position_ids=positions, use_cache=False, **{HANDLER_ARGUMENT: recorder})
    except ModelLoadError as error:
        _refuse(model, str(error), error)
    except Exception as error:
        _refuse(model, f"its forward cannot be traced without weights ({type(error).__name__}: {error})", error)
    if len(recorder.calls) != config.num_hidden_layers:
        _refuse(model, f"{config.num_hidden_layers} layers made {len(recorder.calls)} attention calls; each must make exactly one")
    layers = tuple(_layer(model, config, index, call) for index, call in enumerate(recorder.calls))
    indices = {call.module: index for index, call in enumerate(recorder.calls)}
    if len(indices) != len(layers):
        _refuse(model, "one attention module serves several layers")
    return layers, indices


@contextmanager
def _traceable_experts(model: Any) -> Iterator[None]:
    """Mixture-of-experts layers through batched matrix products, since the grouped kernel has no float32 form on the meta device."""
    if getattr(model.config, "_experts_implementation", None) != "grouped_mm":
        yield
        return
    before = model.get_experts_implementation()
    model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        model.set_experts_implementation(before)


@contextmanager
def _nothing_kept(model: Any) -> Iterator[None]:
    """Takes away the tensors that modules computed meanwhile and keep as plain attributes: they hold nothing, and are made anew where
    missing."""
    before = _plain_tensors(model)
    yield
    for module, name in _plain_tensors(model) - before:
        delattr(module, name)


def _plain_tensors(model: Any) -> set[tuple[torch.nn.Module, str]]:
    return {(module, name) for module in model.modules() for name, value in vars(module).items() if isinstance(value, torch.Tensor)}


def _check_architecture(model: Any, config: Any) -> None:
    if getattr(config, "is_encoder_decoder", False):
        _refuse(model, "it is an encoder-decoder")
    if getattr(model, "_is_stateful", False):
        _refuse(model, "it keeps recurrent state besides the KV cache")
    if not getattr(model, "_supports_attention_backend", False):
        _refuse(model, "transformers does not route its attention through the attention interface")
    if getattr(config, "num_kv_shared_layers", 0):
        _refuse(model, "its layers share KV with each other")
    unknown = sorted(set(getattr(config, "layer_types", None) or ()) - set(_LAYER_TYPES))
    if unknown:
        _refuse(model, f"it has layers of type {', '.join(unknown)}; served are {', '.join(_LAYER_TYPES)}")


def _layer(model: Any, config: Any, index: int, call: _TracedCall) -> AttentionLayer:
    _check_call(model, index, call)
    window, chunk_len = _narrowing(config, index, call.facts)
    scale = call.facts.get("scaling")
    head_dim = call.query_shape[3]
    return AttentionLayer(
        name=f"layers.{index}.attention",
        index=index,
        num_heads=call.query_shape[1],
        num_kv_heads=call.key_shape[1],
        head_dim=head_dim,
        scale=head_dim**-0.5 if scale is None else float(scale),
        kind=SLIDING_WINDOW if window is not None else CHUNKED_LOCAL if chunk_len is not None else FULL,
        sliding_window=window,
        chunk_len=chunk_len,
        logits_soft_cap=call.facts.get("softcap"),
        has_sinks=call.facts.get("s_aux") is not None,
    )


def _check_call(model: Any, index: int, call: _TracedCall) -> None:
    if call.query_shape[2] != _TRACE_TOKENS or call.key_shape[2] != _TRACE_TOKENS:
        _refuse(model, f"layer {index} attends to something else than the tokens before it (cross attention?)")
    if call.key_shape != call.value_shape or call.query_shape[3] != call.key_shape[3]:
        _refuse(
            model,
            f"layer {index} has keys {tuple(call.key_shape)} and values {tuple(call.value_shape)} of different shape (latent attention?)",
        )
    if call.query_shape[1] % call.key_shape[1]:
        _refuse(model, f"layer {index} has {call.query_shape[1]} query heads for {call.key_shape[1]} KV heads")
    if not getattr(call.module, "is_causal", True) or call.facts.get("is_causal") is False:
        _refuse(model, f"layer {index} is not causal")
    biases = [name for name, fact in call.facts.items() if isinstance(fact, torch.Tensor) and name not in _HARMLESS_FACTS]
    if biases:
        _refuse(model, f"layer {index} passes {', '.join(biases)} to its attention, which no backend knows")


def _narrowing(config: Any, index: int, facts: dict[str, Any]) -> tuple[int | None, int | None]:
    """Window and chunk length of a layer.

    Where the config lists layer types, they decide which layers are narrowed, as they do for transformers' own masks; elsewhere a
    window passed to the attention call holds. transformers' window W shows keys p - W < k <= p, as `AttentionLayer.sliding_window` does.
    """
    layer_types = getattr(config, "layer_types", None)
    kind = FULL if layer_types is None else _LAYER_TYPES[layer_types[index]]
    window = facts.get("sliding_window")
    if kind == CHUNKED_LOCAL:
        return None, int(config.attention_chunk_size)
    if kind == SLIDING_WINDOW:
        return int(window or config.sliding_window), None
    return (int(window) if window and layer_types is None else None), None


def _refuse(model: Any, reason: str, cause: Exception | None = None) -> NoReturn:
    raise ModelLoadError(
        f"{type(model).__name__} cannot be run by the `transformers` model component: {reason}. "
        "Served are decoder-only causal models whose every layer attends to earlier tokens through transformers' attention interface."
    ) from cause
