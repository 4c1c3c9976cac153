"""Generation across a model's original length: one rotation for the whole text, however it is computed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from transformers import Phi3Config, PreTrainedModel

from slotwise import LLM, SamplingParams

if TYPE_CHECKING:
    from conftest import SharedModel

ORIGINAL = 32
SHORT, LONG = [1.0, 1.2, 1.5, 2.0], [2.0, 4.0, 6.0, 9.0]
_GENERATOR = random.Random(2)
PROMPTS = [[_GENERATOR.randrange(1, 128) for _ in range(length)] for length in (ORIGINAL - 4, 5, ORIGINAL + 1)]


def phi3(short: list[float], long: list[float]) -> Phi3Config:
    table = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": short, "long_factor": long}
    return Phi3Config(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        original_max_position_embeddings=ORIGINAL,
        rope_parameters={**table, "original_max_position_embeddings": ORIGINAL},
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )


@pytest.fixture(scope="module")
def long_model(
    tmp_path_factory: pytest.TempPathFactory, save_tiny_model: Callable[..., PreTrainedModel], shared_model: Callable[..., SharedModel]
) -> SharedModel:
    path = tmp_path_factory.mktemp("phi3")
    save_tiny_model(path, phi3(SHORT, LONG))
    return shared_model(str(path), dtype="float32", attention="torch_sdpa", block_size=4)


def tokens(llm: LLM, prompts: list[list[int]], num_new: int) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=num_new, ignore_eos=True)
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


@pytest.fixture(scope="module")
def expected(
    tmp_path_factory: pytest.TempPathFactory, save_tiny_model: Callable[..., PreTrainedModel], greedy_of: Callable[..., list[list[int]]]
) -> list[list[int]]:
    """The same weights with the long factors alone, in transformers."""
    return greedy_of(save_tiny_model(tmp_path_factory.mktemp("long"), phi3(LONG, LONG)), PROMPTS, 20)


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_num_batched_tokens": 7, "max_num_seqs": 3}, {"kv_cache": {"num_blocks": 16}}],
    ids=["whole", "chunked", "preempting"],
)
def test_text_goes_on_beyond_the_original_length_with_one_rotation(
    settings: dict[str, Any], long_model: SharedModel, expected: list[list[int]]
) -> None:
    assert tokens(long_model.engine(**settings), PROMPTS, 20) == expected


def test_resumed_text_equals_text_in_one_run(long_model: SharedModel, expected: list[list[int]]) -> None:
    llm = long_model.engine()
    begun = tokens(llm, PROMPTS, 3)
    continued = tokens(llm, [prompt + first for prompt, first in zip(PROMPTS, begun, strict=True)], 17)  # hits the cached prefix
    assert [first + rest for first, rest in zip(begun, continued, strict=True)] == expected


def test_a_limit_of_the_original_length_takes_the_short_factors(
    long_model: SharedModel,
    tmp_path: Path,
    save_tiny_model: Callable[..., PreTrainedModel],
    greedy_of: Callable[..., list[list[int]]],
    shared_model: Callable[..., SharedModel],
) -> None:
    own = save_tiny_model(tmp_path, phi3(SHORT, LONG))
    limited = shared_model(str(tmp_path), dtype="float32", attention="torch_sdpa", max_model_len=ORIGINAL)
    found = tokens(limited.engine(), PROMPTS[:2], 4)
    assert found == greedy_of(own, PROMPTS[:2], 4)
    assert found != tokens(long_model.engine(), PROMPTS[:2], 4)
