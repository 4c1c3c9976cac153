"""A whole engine on the card, under each attention backend that serves it, against `transformers` on the same weights and card."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from slotwise import LLM, SamplingParams
from slotwise.errors import SlotwiseError

PROMPTS = [[5, 9, 200, 17], [3] * 40, list(range(2, 130)), [7]]
NEW_TOKENS = 24
HEAD_DIM = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
    path = tmp_path_factory.mktemp("llama")
    model.save_pretrained(path)
    return path


def engine(path, backend, dtype):
    try:
        return LLM(str(path), device="cuda", dtype=dtype, attention=backend, max_model_len=512)
    except SlotwiseError as error:
        pytest.skip(f"{backend} does not serve this model here: {error}")


@pytest.mark.parametrize("backend", ["torch_sdpa", "triton", "flex"])
def test_greedy_tokens_in_float32_equal_those_of_transformers(model, backend):
    ours = engine(model, backend, "float32")
    theirs = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).to("cuda").eval()
    expected = []
    for prompt in PROMPTS:
        ids = theirs.generate(
            torch.tensor([prompt], device="cuda"),
            attention_mask=torch.ones((1, len(prompt)), dtype=torch.long, device="cuda"),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        expected.append(ids[0, len(prompt) :].tolist())
    outputs = ours.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], SamplingParams(temperature=0, max_tokens=NEW_TOKENS))
    assert [list(output.outputs[0].token_ids) for output in outputs] == expected


@pytest.mark.parametrize("backend", ["torch_sdpa", "triton", "flash_attention", "flashinfer"])
def test_logprobs_in_bfloat16_are_near_those_in_float32(model, backend):
    """bfloat16 keeps 8 bits: over two layers logprobs of the likeliest tokens differ by a few hundredths."""
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=1)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]

    def first_logprobs(found):
        return {(row, token): entry.logprob for row, output in enumerate(found) for token, entry in output.outputs[0].logprobs[0].items()}

    half = first_logprobs(engine(model, backend, "bfloat16").generate(prompts, params))
    single = first_logprobs(engine(model, "torch_sdpa", "float32").generate(prompts, dataclasses.replace(params, logprobs=20)))
    assert {key: value for key, value in half.items() if key not in single or abs(single[key] - value) > 0.15} == {}
