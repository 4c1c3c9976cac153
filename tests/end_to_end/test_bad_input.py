"""Input of types and sizes nobody should send: refused for its request alone, before it can reach a step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from slotwise import LLM, SamplingParams
from slotwise.errors import ConfigError, EngineDeadError, InvalidRequestError

if TYPE_CHECKING:
    from conftest import SharedModel

GREEDY = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)


@pytest.mark.parametrize("top_k", [2**31, 2**63 - 1, 10**30])
def test_a_top_k_beyond_the_vocabulary_cuts_nothing(top_k: int, tiny: SharedModel) -> None:
    params = [SamplingParams(temperature=1.0, seed=1, max_tokens=5, ignore_eos=True, top_k=k) for k in (0, top_k)]
    plain, huge = tiny.engine().generate([[1, 2, 3]] * 2, params, use_tqdm=False)
    assert plain.outputs[0].token_ids == huge.outputs[0].token_ids


@pytest.mark.parametrize(
    "labels",
    [
        {"cache_salt": 5},
        {"cache_salt": ["x"]},
        {"cache_salt": b"x"},
        {"cache_salt": "\ud800"},
        {"client_id": ["u"]},
        {"request_id": ["x"]},
        {"request_id": 7},
        {"priority": "x"},
        {"priority": None},
        {"priority": 1.5},
        {"priority": True},
        {"priority": 10**400},
    ],
)
def test_labels_of_a_wrong_type_are_refused_and_leave_nothing_behind(labels: dict[str, Any], tiny: SharedModel) -> None:
    llm = tiny.engine(scheduler={"use": "fair"})
    with pytest.raises(InvalidRequestError) as caught:
        llm.engine.add_request([1] * 40, GREEDY, **labels)
    assert caught.value.param in labels
    assert not llm.engine.has_unfinished_requests
    assert len(llm.generate([[1, 2]], GREEDY, use_tqdm=False)) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("n", 0), ("seed", "x"), ("logprobs", -3), ("max_tokens", -1), ("temperature", float("nan")), ("stop_token_ids", 5), ("top_k", -7)],
)
def test_parameters_set_after_construction_are_checked_too(field: str, value: Any, tiny: SharedModel) -> None:
    params = SamplingParams(max_tokens=5)
    setattr(params, field, value)
    llm = tiny.engine()
    with pytest.raises(InvalidRequestError) as caught:
        llm.engine.add_request([1, 2], params)
    assert caught.value.param == field
    assert not llm.engine.has_unfinished_requests


@pytest.mark.parametrize("params", [{"temperature": 0}, "x", 5])
def test_parameters_of_another_type_are_refused(params: Any, tiny: SharedModel) -> None:
    with pytest.raises(InvalidRequestError):
        tiny.engine().generate([[1, 2]], params, use_tqdm=False)


@pytest.mark.parametrize(
    "params", [{"bad_words": ["\ud800"]}, {"stop": ["\ud800"]}, {"repetition_penalty": 1e-320}, {"repetition_penalty": 0}]
)
def test_parameters_that_cannot_be_computed_with_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        SamplingParams(**params)


@pytest.mark.parametrize("messages", [{"role": "user", "content": "x"}, "hello", [], [7]])
def test_messages_that_are_no_conversation_are_refused(messages: Any, tiny: SharedModel) -> None:
    with pytest.raises(InvalidRequestError):
        tiny.engine().chat(messages, GREEDY, use_tqdm=False)


@pytest.mark.parametrize(
    "prompt",
    [np.array([1, 2, 3]), [np.int64(1), np.int64(2), np.int64(3)], [[np.int64(1), np.int64(2), np.int64(3)]], torch.tensor([1, 2, 3])],
    ids=["array", "numpy integers", "list of them", "tensor"],
)
def test_ids_of_numpy_and_torch_are_ids(prompt: Any, tiny: SharedModel) -> None:
    llm = tiny.engine()
    expected = llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].outputs[0].token_ids == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"seed": 2**64},
        {"num_threads": 10**9},
        {"kv_cache": {"num_blocks": 16, "block_size": 10**20}},
        {"kv_cache": {"num_blocks": 16, "block_size": 2**31}},
        {"kv_cache": {"num_blocks": 16, "hash_seed": "\ud800"}},
        {"kv_cache": {"num_blocks": 10**12}},
        {"kv_cache": {"memory_mib": 10**9}},
    ],
)
def test_impossible_settings_are_config_errors(settings: dict[str, Any], tiny_model: Path) -> None:
    with pytest.raises(ConfigError):
        LLM(str(tiny_model), dtype="float32", **settings)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_shut_down_engine_holds_nothing_and_takes_nothing(asynchronous: bool, tiny: SharedModel) -> None:
    llm = tiny.engine(scheduler={"async_scheduling": asynchronous})
    llm.engine.add_request([1, 2, 3], SamplingParams(max_tokens=50))
    llm.engine.step()
    llm.shutdown()
    llm.shutdown()
    assert llm.engine.step() == []
    assert not llm.engine.has_unfinished_requests
    with pytest.raises(EngineDeadError):
        llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)
