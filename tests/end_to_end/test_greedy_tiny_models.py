"""Tiny random models of many families: greedy tokens equal `transformers`', in ragged, chunked, preempted, mixed batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Phi3Config,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from slotwise import LLM, SamplingParams
from slotwise.config.loading import load_config

VOCAB = 256
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SHAPE, num_hidden_layers=2),
    "qwen2": lambda: Qwen2Config(**SHAPE, num_hidden_layers=2),
    "qwen3": lambda: Qwen3Config(**SHAPE, num_hidden_layers=2, head_dim=24),
    "mistral": lambda: MistralConfig(**SHAPE, num_hidden_layers=2, sliding_window=12),
    "gemma2": lambda: Gemma2Config(**SHAPE, num_hidden_layers=4, head_dim=16, sliding_window=12, query_pre_attn_scalar=16),
    "gemma3": lambda: Gemma3TextConfig(
        **SHAPE, num_hidden_layers=6, head_dim=16, sliding_window=12, query_pre_attn_scalar=16, sliding_window_pattern=3
    ),
    "phi3": lambda: Phi3Config(**SHAPE, num_hidden_layers=2),
    "smollm3": lambda: SmolLM3Config(**SHAPE, num_hidden_layers=4, no_rope_layers=[1, 1, 0, 1]),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=256, bos_token_id=None, eos_token_id=None, pad_token_id=0
    ),
    "opt": lambda: OPTConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        ffn_dim=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        word_embed_proj_dim=64,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    ),
}
LENGTHS = (1, 5, 13, 40, 90)
NUM_NEW = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_NEW, ignore_eos=True)


def prompts_of(seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, VOCAB, (length,), generator=generator).tolist() for length in LENGTHS]


@pytest.mark.parametrize("family", CONFIGS)
def test_greedy_tokens_equal_transformers(
    family: str,
    tmp_path: Path,
    shared_model: Callable[..., Any],
    save_tiny_model: Callable[..., PreTrainedModel],
    greedy_of: Callable[..., list[list[int]]],
    assert_idle: Callable[[LLM], None],
) -> None:
    reference = save_tiny_model(tmp_path, CONFIGS[family]())
    prompts = prompts_of(3)
    expected = greedy_of(reference, prompts, NUM_NEW)
    model = shared_model(str(tmp_path), dtype="float32", max_model_len=128)
    for settings in (
        {"attention": "auto"},
        {"attention": "torch_sdpa"},
        {"attention": "reference"},
        {"attention": "torch_sdpa", "max_num_batched_tokens": 8, "max_num_seqs": 5, "block_size": 3},
        {"attention": "torch_sdpa", "block_size": 4, "kv_cache": {"num_blocks": _small_pool(family)}},
        {"attention": {"use": "torch_sdpa", "per_phase": {"decode": "reference"}}, "max_num_batched_tokens": 16, "max_num_seqs": 5},
        {"attention": {"use": "torch_sdpa", "per_kind": {"sliding_window": "reference"}}},
    ):
        llm = model.engine(**settings)
        for state in ("cold", "warm"):
            outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
            assert [output.outputs[0].token_ids for output in outputs] == expected, (settings, state)
        assert_idle(llm)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "smollm3"])
@pytest.mark.parametrize("linear", ["dense", "torch"])
def test_the_fused_decoder_serves_its_families_in_c_and_link_by_link(
    family: str,
    linear: str,
    tmp_path: Path,
    save_tiny_model: Callable[..., PreTrainedModel],
    greedy_of: Callable[..., list[list[int]]],
) -> None:
    """`torch` matrices are no native ones, so that chains are run link by link. float32: dense keeps every weight."""
    reference = save_tiny_model(tmp_path, CONFIGS[family]())
    prompts = prompts_of(4)
    expected = greedy_of(reference, prompts, NUM_NEW)
    settings = [
        "model.use=fused",
        "model.dtype=float32",
        f"linear.use={linear}",
        "kv_cache.num_blocks=200",
        "scheduler.max_num_batched_tokens=64",
    ]
    llm = LLM(config=load_config(set_values=[*settings, "scheduler.max_num_seqs=5"], overrides={"model.source": str(tmp_path)}))
    assert [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY, use_tqdm=False)] == expected
    llm.shutdown()


def _small_pool(family: str) -> int:
    """Blocks of 4 that hold the longest request (114 tokens) once, for each KV group of the family, and little more."""
    return 34 * {"gemma2": 2, "gemma3": 3}.get(family, 1)
