"""The backend and the policy change neither tokens nor texts, and the options reach them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from slotwise import LLM, SamplingParams
from slotwise.errors import ConfigError

PROMPTS = ["The capital of France is", "One two three four five six seven eight nine", "Water is"]


def greedy_tokens(attention: str | Mapping[str, Any], scheduler: str | Mapping[str, Any] = "fcfs") -> list[list[int]]:
    llm = LLM(model="smollm2", attention=attention, scheduler=scheduler, kv_cache={"num_blocks": 16})
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=8))
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    return greedy_tokens("reference")


def test_tokens_equal_the_reference(expected: list[list[int]]) -> None:
    assert greedy_tokens("loop", {"use": "shortest_prompt_first", "max_num_seqs": 1, "options": {"bucket_tokens": 4}}) == expected


def test_softmax_temperature_reaches_the_backend(expected: list[list[int]]) -> None:
    assert greedy_tokens({"use": "loop", "options": {"softmax_temperature": 4.0}}) != expected


def test_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="softmax_temperature"):
        LLM(model="smollm2", attention={"use": "loop", "options": {"softmax_temprature": 4.0}})
