"""What a plan decides of attention beyond the choice of names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotwise.engine.front_end import front_end_of, resolve_config
from slotwise.engine.plan import EnginePlan, plan_engine
from slotwise.errors import ModelLoadError, ResolutionError
from slotwise.interfaces.model import Model
from slotwise_plugins.models.transformers_model import TransformersModel


@pytest.fixture
def plan(chat_model: Path) -> Callable[..., EnginePlan]:
    return lambda **overrides: plan_engine(resolve_config(str(chat_model), None, overrides))


def test_batch_invariance_is_asked_of_every_backend_and_told_to_it(plan: Callable[..., EnginePlan]) -> None:
    with pytest.raises(ResolutionError, match="batch_invariant: wanted yes, offered no"):
        plan(attention={"use": "torch_sdpa", "batch_invariant": True})
    for wanted in (True, False):
        llm = front_end_of(plan(attention={"use": "reference", "batch_invariant": wanted}))
        (group,) = llm.core.executor.attention.groups  # type: ignore[attr-defined]
        assert group.decode.setup.batch_invariant is wanted


def test_a_kv_dtype_nobody_offers_is_refused_with_what_each_candidate_offers(plan: Callable[..., EnginePlan]) -> None:
    with pytest.raises(ResolutionError) as error:
        plan(kv_cache={"dtype": "int9"})
    assert "torch_sdpa" in str(error.value)
    assert "kv_dtype: wanted int9, offered auto" in str(error.value)


def test_each_layer_says_which_entry_decided(plan: Callable[..., EnginePlan]) -> None:
    layers = plan(attention={"use": "torch_sdpa", "per_phase": {"decode": "reference"}}).layers
    assert {(layer.prefill, layer.prefill_part, layer.decode, layer.decode_part) for layer in layers} == {
        ("torch_sdpa", "", "reference", "decode")
    }
    layers = plan(attention={"use": "torch_sdpa", "per_phase": {"decode": "reference"}, "per_kind": {"full": "torch_sdpa"}}).layers
    assert {(layer.decode, layer.decode_part) for layer in layers} == {("torch_sdpa", "full")}


def test_layers_the_engine_cannot_feed_are_refused_though_backends_serve_them(
    plan: Callable[..., EnginePlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    own: Any = TransformersModel.attention_layers

    def cross(self: Model) -> Any:
        return tuple(replace(layer, attention_type="cross") for layer in own.fget(self))

    monkeypatch.setattr(TransformersModel, "attention_layers", property(cross))
    with pytest.raises(ModelLoadError, match="decoder-only"):
        plan(attention="reference", **{"model.use": "transformers"})


def test_the_model_learns_the_engines_limit(plan: Callable[..., EnginePlan]) -> None:
    for wanted, limit in ((64, 64), (None, 512)):
        found = plan(max_model_len=wanted).model_plan if wanted else plan().model_plan
        assert found is not None
        assert found.instance.setup.max_model_len == limit
