"""A prefix that all requests share is found by the scheduler, announced to a backend that can use it, and changes no token."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from transformers import LlamaConfig, PreTrainedModel

from slotwise import LLM, SamplingParams
from slotwise.interfaces.attention import MetadataRequest
from slotwise_backends.torch_sdpa import TorchSdpaAttention

if TYPE_CHECKING:
    from conftest import SharedModel

_GENERATOR = random.Random(8)
SHARED = [_GENERATOR.randrange(1, 128) for _ in range(270)]
PROMPTS = [[*SHARED, *(_GENERATOR.randrange(1, 128) for _ in range(length))] for length in range(1, 10)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)


@pytest.fixture(scope="module")
def model(
    tmp_path_factory: pytest.TempPathFactory, save_tiny_model: Callable[..., PreTrainedModel], shared_model: Callable[..., SharedModel]
) -> SharedModel:
    path = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=320,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    save_tiny_model(path, config)
    return shared_model(str(path), dtype="float32")


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(rows, common_prefix_len) of each step."""
    steps: list[tuple[int, int]] = []
    build = TorchSdpaAttention.build_metadata

    def noted(self: TorchSdpaAttention, request: MetadataRequest) -> Any:
        steps.append((request.common.num_reqs, request.common_prefix_len))
        return build(self, request)

    monkeypatch.setattr(TorchSdpaAttention, "build_metadata", noted)
    return steps


def tokens(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY, use_tqdm=False)]


def test_tokens_are_those_of_a_backend_without_cascade(model: SharedModel, announced: list[tuple[int, int]]) -> None:
    expected = tokens(model.engine(attention="reference"), PROMPTS)
    llm = model.engine(attention="torch_sdpa")
    tokens(llm, [SHARED])
    announced.clear()
    assert tokens(llm, PROMPTS) == expected
    assert announced
    assert {prefix for rows, prefix in announced if rows == 9} == {256}  # whole blocks of 16 that were computed before, of 270 tokens
    assert all(prefix == 0 for rows, prefix in announced if rows < 8)


@pytest.mark.parametrize("settings", [{"kv_cache": {"sanitize": True, "num_blocks": 40}}, {"kv_cache": {"dtype": "float8_e4m3fn"}}])
def test_cascade_holds_under_the_sanitizer_and_over_a_quantised_cache(
    settings: dict[str, Any], model: SharedModel, announced: list[tuple[int, int]]
) -> None:
    wanted = model.engine(attention="reference", kv_cache={key: value for key, value in settings["kv_cache"].items() if key == "dtype"})
    expected = tokens(wanted, PROMPTS)
    llm = model.engine(attention="torch_sdpa", **settings)
    tokens(llm, [SHARED])
    assert tokens(llm, PROMPTS) == expected
    assert max(prefix for _, prefix in announced) == 256


def test_a_layer_with_a_window_gets_no_prefix(
    tmp_path: Path,
    save_tiny_model: Callable[..., PreTrainedModel],
    shared_model: Callable[..., SharedModel],
    announced: list[tuple[int, int]],
) -> None:
    from transformers import MistralConfig

    config = MistralConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=320,
        sliding_window=300,
        bos_token_id=None,
        eos_token_id=None,
    )
    save_tiny_model(tmp_path, config)
    llm = shared_model(str(tmp_path), dtype="float32").engine(attention="torch_sdpa")
    tokens(llm, [SHARED])
    tokens(llm, PROMPTS)
    assert {prefix for _, prefix in announced} == {0}
