"""Random weights are a function of seed and name."""

from __future__ import annotations

import torch
import transformers

from slotwise.interfaces.model import WeightsSetup
from slotwise_plugins.weights.random_weights import RandomWeights


def make_config(num_layers=2, **facts):
    return transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        **facts,
    )


def read(config, seed=0):
    return dict(RandomWeights(WeightsSetup(path=None, hf_config=config, seed=seed)).tensors())


def test_a_tensor_depends_on_seed_and_name_alone():
    small, large = read(make_config(2)), read(make_config(4))
    assert all(torch.equal(tensor, large[name]) for name, tensor in small.items())
    assert not torch.equal(small["lm_head.weight"], read(make_config(2), seed=1)["lm_head.weight"])
    assert not torch.equal(small["model.layers.0.self_attn.q_proj.weight"], small["model.layers.1.self_attn.q_proj.weight"])


def test_names_are_those_of_the_checkpoint_and_tied_ones_come_once():
    names = read(make_config(tie_word_embeddings=True)).keys()
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    assert "lm_head.weight" in read(make_config())


def test_scale_keeps_activations_in_size():
    tensors = read(make_config())
    assert abs(float(tensors["model.layers.0.mlp.down_proj.weight"].std()) * 48**0.5 - 1) < 0.1
    assert abs(float(tensors["model.norm.weight"].mean()) - 1) < 0.1


def test_counts_its_tensors():
    weights = RandomWeights(WeightsSetup(path=None, hf_config=make_config()))
    assert weights.num_tensors == len(list(weights.tensors()))
