"""Loading by name: tied tensors, prefixes, and what does not fit."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors.torch import load_file

from slotwise.errors import WeightsError
from slotwise.interfaces.model import ModelSetup, WeightsSetup
from slotwise_plugins.models.transformers_model import TransformersModel
from slotwise_plugins.weights.random_weights import RandomWeights


def named_tensors(config):
    return dict(RandomWeights(WeightsSetup(path=None, hf_config=config)).tensors())


@pytest.fixture
def tied(configs):
    config = configs["qwen3"]()
    assert config.tie_word_embeddings
    return config, named_tensors(config)


def heads(model):
    return model.model.lm_head.weight, model.model.model.embed_tokens.weight


@pytest.mark.parametrize("order", ["before", "after"])
def test_tied_head_stored_with_the_same_value_is_accepted(tied, make_model, tensor_weights, caplog, order):
    config, tensors = tied
    head = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    model = make_model(config, weights=tensor_weights(head | tensors if order == "before" else tensors | head))
    head_memory, embedding = heads(model)
    assert head_memory.data_ptr() == embedding.data_ptr()
    assert torch.equal(embedding, tensors["model.embed_tokens.weight"])
    assert not caplog.records


@pytest.mark.parametrize("order", ["before", "after"])
def test_tied_head_stored_with_another_value_gives_way_with_a_warning(tied, make_model, tensor_weights, caplog, order):
    config, tensors = tied
    head = {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}
    model = make_model(config, weights=tensor_weights(head | tensors if order == "before" else tensors | head))
    assert torch.equal(heads(model)[0], tensors["model.embed_tokens.weight"])
    assert "lm_head.weight" in caplog.text


def test_tied_model_with_the_embedding_alone_holds_one_copy(tied, make_model, tensor_weights):
    config, tensors = tied
    head_memory, embedding = heads(make_model(config, weights=tensor_weights(tensors)))
    assert head_memory.data_ptr() == embedding.data_ptr()


def test_tied_model_with_the_head_alone_uses_it_for_both(tied, make_model, tensor_weights):
    config, tensors = tied
    embedding = tensors.pop("model.embed_tokens.weight")
    model = make_model(config, weights=tensor_weights(tensors | {"lm_head.weight": embedding}))
    assert torch.equal(heads(model)[1], embedding)


@pytest.mark.parametrize("change", ["drop", "add"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_prefix_of_the_bare_model_may_lack_or_be_one_too_many(configs, make_model, tensor_weights, family, change):
    config = configs[family]()
    expected = make_model(config).model.state_dict()
    prefix = {"gpt2": "transformer.", "llama": "model."}[family]
    tensors = {
        (name.removeprefix(prefix) if change == "drop" else name if name.startswith(prefix) else prefix + name): tensor
        for name, tensor in named_tensors(config).items()
    }
    loaded = make_model(config, weights=tensor_weights(tensors)).model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())


def test_names_what_is_missing_left_over_and_of_the_wrong_shape(configs, make_model, tensor_weights):
    config = configs["llama"]()
    tensors = named_tensors(config)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.7.mlp.up_proj.weight"] = torch.ones(2)
    tensors["model.norm.weight"] = torch.ones(5)
    with pytest.raises(WeightsError) as error:
        make_model(config, weights=tensor_weights(tensors))
    text = str(error.value)
    assert "missing: model.layers.1.mlp.up_proj.weight;" in text
    assert "not part of the model: model.layers.7.mlp.up_proj.weight;" in text
    assert "model.norm.weight is [5], not [32]" in text


def test_buffers_that_old_checkpoints_store_are_ignored(configs, make_model, tensor_weights):
    config = configs["llama"]()
    tensors = named_tensors(config) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    make_model(config, weights=tensor_weights(tensors))


def test_reports_progress_up_to_the_end(configs, tensor_weights):
    config = configs["llama"]()
    weights, seen = tensor_weights(named_tensors(config)), []
    model = TransformersModel(ModelSetup(hf_config=config, dtype="bfloat16", device="cpu"))
    model.load(weights, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (weights.num_tensors, weights.num_tensors)
    assert all(parameter.dtype == torch.bfloat16 and not parameter.is_meta for parameter in model.model.parameters())


def test_save_and_load_keeps_tied_logits(tied, make_model, tensor_weights, harness, backend_class):
    config, tensors = tied
    model = make_model(config, weights=tensor_weights(tensors))
    again = make_model(config, weights=tensor_weights({name: tensor.clone() for name, tensor in model.model.state_dict().items()}))
    sequence = [[5, 6, 7, 8]]
    assert torch.equal(harness(model, backend_class).run(sequence, [9])[0], harness(again, backend_class).run(sequence, [9])[0])


def test_a_checkpoint_with_experts_one_by_one_is_refused_for_its_form(make_model, tensor_weights):
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.MixtralConfig(**sizes, num_key_value_heads=1, num_local_experts=2)
    tensors = {name: tensor for name, tensor in named_tensors(config).items() if ".experts." not in name}
    expert = "model.layers.0.block_sparse_moe.experts.0.w1.weight"
    with pytest.raises(WeightsError, match="does not convert") as error:
        make_model(config, weights=tensor_weights(tensors | {expert: torch.ones(24, 16)}))
    assert expert in str(error.value)
    assert "download" not in str(error.value)


def test_a_tensor_foreign_to_a_converted_architecture_is_still_left_over(make_model, tensor_weights):
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.MixtralConfig(**sizes, num_key_value_heads=1, num_local_experts=2)
    foreign = {"model.layers.7.block_sparse_moe.experts.0.w1.weight": torch.ones(24, 16)}
    with pytest.raises(WeightsError, match=r"not part of the model: model\.layers\.7"):
        make_model(config, weights=tensor_weights(named_tensors(config) | foreign))


def test_the_conversion_that_the_refusal_names_leads_to_a_model_that_loads(tmp_path, make_model, tensor_weights):
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.MixtralConfig(**sizes, num_key_value_heads=1, num_local_experts=2)
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match="does not convert"):
        make_model(config, weights=tensor_weights(stored))
    converted = transformers.MixtralForCausalLM.from_pretrained(tmp_path).state_dict()
    loaded = make_model(config, weights=tensor_weights(converted)).model.state_dict()
    assert all(torch.equal(loaded[name], tensor.float()) for name, tensor in converted.items())


def test_gpt_neox_with_its_old_output_layer_is_refused_for_its_form(make_model, tensor_weights):
    config = transformers.GPTNeoXConfig(vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
    tensors = named_tensors(config)
    tensors["embed_out.weight"] = tensors.pop("lm_head.weight")
    with pytest.raises(WeightsError, match=r"embed_out\.weight.*does not convert"):
        make_model(config, weights=tensor_weights(tensors))
