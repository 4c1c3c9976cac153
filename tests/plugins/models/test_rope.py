"""Rotary embeddings: precision, YaRN's factors and length, and rotations that must not change while an engine lives."""

from __future__ import annotations

import json
import logging
import math

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from slotwise.interfaces.model import ModelSetup, WeightsSetup
from slotwise.model_source import find_model
from slotwise_plugins.models.transformers_model import TransformersModel
from slotwise_plugins.weights.random_weights import RandomWeights

SMALL = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def built(config, dtype="float32", max_model_len=None):
    model = TransformersModel(ModelSetup(hf_config=config, dtype=dtype, device="cpu", max_model_len=max_model_len))
    model.load(RandomWeights(WeightsSetup(path=None, hf_config=config)))
    return model


def rotary(model):
    return model.model.model.rotary_emb


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_angles_are_exact_to_a_hundredth_of_a_radian_in_models_of_half_precision(dtype):
    """Known bug 95. Doing it all in bfloat16 errs by 2 rad at position 1000."""
    config = transformers.LlamaConfig(**SMALL | {"hidden_size": 256}, max_position_embeddings=4096, head_dim=64)
    positions = torch.tensor([[100, 1000, 4095, 5000]])  # the last beyond the model's own length: there is no table to run out of
    half = torch.zeros(1, dtype=getattr(torch, dtype))
    module = rotary(built(config, dtype))
    cos, sin = module(half.float(), positions)  # before the final cast
    exact = positions.double()[..., None] * 10000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    phase = torch.atan2(sin[..., :32].double(), cos[..., :32].double()) - exact
    assert float((phase - (phase / (2 * math.pi)).round() * 2 * math.pi).abs().max()) < 1e-2
    cast_cos, cast_sin = module(half, positions)
    assert (cast_cos.dtype, cast_sin.dtype) == (half.dtype, half.dtype)
    assert torch.equal(cast_cos, cos.to(half.dtype))


def yarn(**facts):
    table = {"rope_type": "yarn", "rope_theta": 10000.0, "original_max_position_embeddings": 4096, **facts}
    return transformers.LlamaConfig(**SMALL, max_position_embeddings=65536, head_dim=64, rope_parameters=table)


@pytest.mark.parametrize(
    ("facts", "attention_factor"),
    [
        ({"factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"factor": 16.0}, 1.2772588722),
        ({"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.707}, 1.0857264),
        ({"factor": 16.0, "attention_factor": 1.5}, 1.5),
        ({"factor": 16.0, "truncate": False}, 1.2772588722),
    ],
)
def test_yarn_scales_as_transformers_does(facts, attention_factor):
    """Known bug 97."""
    config = yarn(**facts)
    module = rotary(built(config))
    frequencies, scaling = ROPE_INIT_FUNCTIONS["yarn"](config)
    assert module.attention_scaling == pytest.approx(attention_factor, abs=1e-6)
    assert module.attention_scaling == pytest.approx(scaling, abs=1e-6)
    torch.testing.assert_close(module.inv_freq, frequencies, rtol=1e-6, atol=0)
    cos, _ = module(torch.zeros(1), torch.tensor([[0, 5]]))
    torch.testing.assert_close(cos[0, 0], torch.full((64,), attention_factor), rtol=1e-6, atol=0)


def test_yarn_length_is_the_stated_one_and_not_scaled_again(tmp_path):
    table = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32768}
    config = transformers.LlamaConfig(**SMALL, max_position_embeddings=131072, rope_parameters=table)
    config.save_pretrained(tmp_path)
    assert find_model(str(tmp_path)).max_model_len == 131072


SHORT, LONG = [1.0, 1.5, 2.0, 2.5], [3.0, 5.0, 7.0, 11.0]


def longrope(original=16, longest=64, short=SHORT, long=LONG):
    table = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": original,
    }
    return transformers.Phi3Config(
        **SMALL, max_position_embeddings=longest, original_max_position_embeddings=original, rope_parameters=table
    )


@pytest.mark.parametrize(("max_model_len", "factors"), [(4095, SHORT), (4096, SHORT), (4097, LONG), (131072, LONG), (None, LONG)])
def test_longrope_factors_are_fixed_by_the_engines_limit(max_model_len, factors, caplog):
    """Known bug 99: up to the original length the short ones, beyond it the long ones, whatever a sequence's own length."""
    caplog.set_level(logging.INFO, logger="slotwise_plugins")
    module = rotary(built(longrope(4096, 131072), max_model_len=max_model_len))
    assert module.attention_scaling == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)), abs=1e-6)
    assert module.attention_scaling == pytest.approx(1.1902, abs=1e-4)
    expected = 1 / (torch.tensor(factors, dtype=torch.float64) * 10000.0 ** (torch.arange(0, 8, 2, dtype=torch.float64) / 8))
    for longest in (5, 4095, 4096, 100_000, 5):  # the longest sequence of each batch
        cos, _ = module(torch.zeros(1), torch.tensor([[1, longest]]))
        torch.testing.assert_close(module.inv_freq.double(), expected, rtol=1e-6, atol=0)
        torch.testing.assert_close(cos[0, 0, :4].double(), expected.cos() * module.attention_scaling, rtol=1e-6, atol=0)
    assert ("long factors" if factors is LONG else "short factors") in caplog.text


@pytest.mark.parametrize(("max_model_len", "factors"), [(16, SHORT), (64, LONG)])
@pytest.mark.parametrize("chunk_lens", [[512], [5, 1, 3]], ids=["whole", "chunked"])
def test_no_request_mixes_rotations_however_it_is_cut(max_model_len, factors, chunk_lens, backend_class, harness, make_eager):
    """Requests below, at and above the original length share the batch; each has the logits of a model with one set of factors."""
    generator = torch.Generator().manual_seed(5)
    lengths = [15, 16, 9] if max_model_len == 16 else [15, 16, 17, 40]
    sequences = [torch.randint(3, 101, (length,), generator=generator).tolist() for length in lengths]
    logits = harness(built(longrope(), max_model_len=max_model_len), backend_class).run(sequences, chunk_lens)
    one_set = make_eager(longrope(short=factors, long=factors), "float64")
    either_set = make_eager(longrope(), "float64")
    for sequence, found in zip(sequences, logits, strict=True):
        with torch.inference_mode():
            expected = one_set(input_ids=torch.tensor([sequence]), use_cache=False).logits[0]
            own = either_set(input_ids=torch.tensor([sequence]), use_cache=False).logits[0]
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-4 * float(expected.std()))
        agrees = (len(sequence) <= 16) == (factors is SHORT)  # transformers decides by the sequence, we by the limit
        assert torch.allclose(own, expected) == agrees


def test_dynamic_scaling_does_nothing_within_the_models_length(backend_class, harness, make_eager):
    table = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    config = transformers.LlamaConfig(**SMALL, max_position_embeddings=64, rope_parameters=table)
    sequences = [list(range(3, 3 + length)) for length in (64, 20)]
    logits = harness(built(config), backend_class).run(sequences, [7, 20])
    eager = make_eager(config, "float64")
    for sequence, found in zip(sequences, logits, strict=True):
        with torch.inference_mode():
            expected = eager(input_ids=torch.tensor([sequence]), use_cache=False).logits[0]
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-4 * float(expected.std()))


def test_the_callers_rope_tables_are_left_alone():
    config = longrope()
    before = json.loads(config.to_json_string())
    built(config)
    assert json.loads(config.to_json_string()) == before
