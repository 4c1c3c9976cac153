"""The number of threads changes how long things take and nothing else: logprobs are equal to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, PreTrainedModel

from slotwise import LLM, SamplingParams
from slotwise.config.loading import load_config
from slotwise_backends.cpu_attention.capabilities import missing_library

pytestmark = pytest.mark.skipif(missing_library() is not None, reason="no C compiler was there at install")
LENGTHS = (1, 7, 130, 700)
"""The last one's keys are summed in two splits."""


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("linear", ["dense", "int8", "int4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results_do_not_depend_on_the_number_of_threads(
    dtype: str, linear: str, tmp_path: Path, save_tiny_model: Callable[..., PreTrainedModel], threads: None
) -> None:
    config = LlamaConfig(
        vocab_size=256, hidden_size=192, intermediate_size=160, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        head_dim=64, max_position_embeddings=1024, bos_token_id=None, eos_token_id=None, pad_token_id=0, tie_word_embeddings=True,
    )  # fmt: skip
    save_tiny_model(tmp_path, config)
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(1, 256, (length,), generator=generator).tolist() for length in LENGTHS]
    found = [_logprobs(str(tmp_path), dtype, linear, num_threads, prompts) for num_threads in (1, 2, 5)]
    assert found[1] == found[0]
    assert found[2] == found[0]


def _logprobs(model: str, dtype: str, linear: str, num_threads: int, prompts: list[list[int]]) -> list[Any]:
    settings = [f"num_threads={num_threads}", f"model.dtype={dtype}", f"linear.use={linear}", "attention.use=cpu", "model.use=fused"]
    limits = ["kv_cache.num_blocks=200", "scheduler.max_num_seqs=8"]
    llm = LLM(config=load_config(set_values=[*settings, *limits], overrides={"model.source": model}))
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=3, prompt_logprobs=1)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    llm.shutdown()
    return [(output.outputs[0].token_ids, output.outputs[0].logprobs, output.prompt_logprobs) for output in outputs]
