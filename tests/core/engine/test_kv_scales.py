"""Scales of a quantised cache: what the calibrating forward computes, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from slotwise.engine.kv_scales import HEAD_ROOM, PROMPT_LEN, KVScales, find_kv_scales
from slotwise.interfaces.attention import AttentionLayer
from slotwise.interfaces.model import ForwardBatch, Model, ModelOutput, ProgressCallback, Weights
from slotwise.testing.attention_truth import Question, answer

LAYER = AttentionLayer(name="l0", index=0, num_heads=4, num_kv_heads=2, head_dim=8, scale=0.3)
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])


class DrawnModel(Model):
    """Attends in each of its layers with tensors drawn from a seed, and keeps what it gave and got. Layer n's K is n + 1 times as large."""

    def __init__(self, layers: Sequence[AttentionLayer]) -> None:
        self.layers = tuple(layers)
        self.calls: list[dict[str, Any]] = []
        self.input_ids = torch.empty(0)

    @property
    def vocab_size(self) -> int:
        return 50

    @property
    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        return self.layers

    def load(self, weights: Weights, progress: ProgressCallback | None = None) -> None:
        """Has no weights."""

    def forward(self, batch: ForwardBatch) -> ModelOutput:
        self.input_ids = batch.input_ids
        num_tokens, generator = len(batch.input_ids), torch.Generator().manual_seed(1)
        for layer in self.layers:
            query = torch.randn(num_tokens, layer.num_heads, layer.head_dim, generator=generator)
            key = (layer.index + 1) * torch.randn(num_tokens, layer.num_kv_heads, layer.head_dim, generator=generator)
            value = None if layer.is_mla else torch.randn(num_tokens, layer.num_kv_heads, layer.head_dim, generator=generator)
            extra = {"sinks": SINKS if layer.has_sinks else None, "alibi_slopes": SLOPES if layer.has_alibi else None}
            shared = layer.kv_sharing_target is not None
            output = batch.attention.attend(layer.index, query, None if shared else key, None if shared else value, **extra)
            self.calls.append({"query": query, "key": key, "value": value, "output": output, **extra})
        return ModelOutput(logits=torch.zeros(1, 50))


def scales_of(model: Model, kv_dtype: str = "int8", max_model_len: int = 4096) -> dict[str, KVScales]:
    return find_kv_scales(model, kv_dtype=kv_dtype, device="cpu", max_model_len=max_model_len)


@pytest.mark.parametrize(("kv_dtype", "largest"), [("int8", 127.0), ("float8_e4m3fn", 448.0), ("float8_e5m2", 57344.0)])
def test_largest_values_of_the_prompt_times_head_room_are_the_dtypes_largest(kv_dtype: str, largest: float) -> None:
    model = DrawnModel([LAYER, replace(LAYER, name="l1", index=1)])
    scales = scales_of(model, kv_dtype)
    for name, call in zip(("l0", "l1"), model.calls, strict=True):
        assert scales[name].k * largest == pytest.approx(HEAD_ROOM * float(call["key"].abs().max()))
        assert scales[name].v * largest == pytest.approx(HEAD_ROOM * float(call["value"].abs().max()))
    assert scales["l0"].k != scales["l0"].v != scales["l1"].v


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "float16"])
def test_other_dtypes_need_no_scales_and_no_forward(kv_dtype: str) -> None:
    model = DrawnModel([LAYER])
    assert scales_of(model, kv_dtype) == {}
    assert not model.calls


def test_prompt_is_the_same_each_time_within_the_vocabulary_and_no_longer_than_allowed() -> None:
    model = DrawnModel([LAYER])
    first = scales_of(model)
    ids = model.input_ids
    assert (len(ids), int(ids.min()) >= 0, int(ids.max()) < 50) == (PROMPT_LEN, True, True)
    torch.manual_seed(99)
    assert scales_of(model) == first
    assert torch.equal(model.input_ids, ids)
    scales_of(model, max_model_len=7)
    assert len(model.input_ids) == 7


def test_a_layer_that_shares_kv_has_its_targets_scales() -> None:
    scales = scales_of(DrawnModel([LAYER, replace(LAYER, name="l1", index=1, kv_sharing_target="l0")]))
    assert scales["l1"] == scales["l0"]


def test_values_of_zero_leave_the_scale_at_one() -> None:
    class Zero(DrawnModel):
        def forward(self, batch: ForwardBatch) -> ModelOutput:
            nothing = torch.zeros(len(batch.input_ids), 2, 8)
            batch.attention.attend(0, torch.zeros(len(batch.input_ids), 4, 8), nothing, nothing)
            return ModelOutput(logits=torch.zeros(1, 50))

    assert scales_of(Zero([LAYER])) == {"l0": KVScales(k=1.0, v=1.0)}


LAYERS = {
    "full": LAYER,
    "window": replace(LAYER, kind="sliding_window", sliding_window=5),
    "chunk": replace(LAYER, kind="chunked_local", chunk_len=6),
    "soft cap": replace(LAYER, logits_soft_cap=1.5),
    "sinks": replace(LAYER, has_sinks=True),
    "alibi": replace(LAYER, has_alibi=True),
    "all": replace(LAYER, kind="sliding_window", sliding_window=5, logits_soft_cap=1.5, has_sinks=True, has_alibi=True),
    "latent": replace(LAYER, num_kv_heads=1, latent_value_dim=6),
}


@pytest.mark.parametrize("name", LAYERS)
def test_later_layers_see_what_attention_would_really_give(name: str) -> None:
    layer = LAYERS[name]
    model = DrawnModel([layer])
    scales_of(model, max_model_len=20)
    (call,) = model.calls
    place = torch.arange(20)
    distance = place[:, None] - place[None]
    visible = distance >= 0
    if layer.sliding_window:
        visible &= distance < layer.sliding_window
    if layer.chunk_len:
        visible &= place[:, None] // layer.chunk_len == place[None] // layer.chunk_len
    value = call["key"][..., : layer.value_dim] if call["value"] is None else call["value"]
    truth = answer(
        Question(
            layer=layer,
            query=call["query"],
            key=call["key"].double(),
            value=value.double(),
            visible=visible,
            distance=distance.abs(),
            sinks=call["sinks"],
            alibi_slopes=call["alibi_slopes"],
        ),
        is_stored_in_other_dtype=False,
    )
    assert bool(((call["output"].double() - truth.output).abs() <= truth.output_error).all())
