"""What is read off a traced forward, and which models are refused."""

from __future__ import annotations

import pytest
import transformers

from slotwise.errors import ModelLoadError
from slotwise.interfaces.model import ModelSetup
from slotwise_plugins.models.transformers_model import TransformersModel

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def layers_of(config):
    return TransformersModel(ModelSetup(hf_config=config, dtype="float32", device="cpu")).attention_layers


def test_llama_layers_are_full_and_grouped(configs):
    layers = layers_of(configs["llama"]())
    assert [layer.index for layer in layers] == [0, 1, 2]
    assert {(layer.num_heads, layer.num_kv_heads, layer.head_dim) for layer in layers} == {(4, 2, 8)}
    assert {(layer.kind, layer.sliding_window, layer.logits_soft_cap) for layer in layers} == {("full", None, None)}
    assert layers[0].scale == pytest.approx(8**-0.5)
    assert len({layer.name for layer in layers}) == 3


def test_mistral_has_its_window_on_every_layer(configs):
    assert [(layer.kind, layer.sliding_window) for layer in layers_of(configs["mistral"]())] == [("sliding_window", 6)] * 3


def test_gemma2_alternates_and_caps(configs):
    layers = layers_of(configs["gemma2"]())
    assert [layer.sliding_window for layer in layers] == [6, None, 6]
    assert {layer.logits_soft_cap for layer in layers} == {2.0}
    assert layers[0].scale == pytest.approx(24**-0.5)


def test_qwen2_window_starts_where_the_config_says(configs):
    assert [layer.kind for layer in layers_of(configs["qwen2_window"]())] == ["full", "sliding_window", "sliding_window"]


def test_gpt_oss_has_sinks(configs):
    layers = layers_of(configs["gpt_oss"]())
    assert all(layer.has_sinks for layer in layers)
    assert [layer.kind for layer in layers] == ["sliding_window", "full"] * 2


def test_opt_scales_its_queries_itself(configs):
    assert {layer.scale for layer in layers_of(configs["opt"]())} == {1.0}


@pytest.mark.parametrize(
    ("make_config", "reason"),
    [
        (lambda: transformers.MambaConfig(num_hidden_layers=2, hidden_size=16, vocab_size=50), "recurrent state"),
        (lambda: transformers.BloomConfig(n_layer=2, hidden_size=16, n_head=2, vocab_size=50), "attention interface"),
        (lambda: transformers.T5Config(num_layers=1, d_model=16, num_heads=2, vocab_size=50), "cannot build a causal language model"),
        (lambda: transformers.BertConfig(num_hidden_layers=1, hidden_size=16, num_attention_heads=2, is_decoder=False), "causal"),
        (lambda: transformers.MptConfig(n_layers=2, d_model=16, n_heads=2, vocab_size=50), "attention interface"),
        (
            lambda: transformers.FalconConfig(num_hidden_layers=2, hidden_size=16, num_attention_heads=2, vocab_size=50, alibi=True),
            "attention interface",
        ),
        (
            lambda: transformers.DeepseekV3Config(
                num_hidden_layers=1,
                hidden_size=16,
                num_attention_heads=2,
                num_key_value_heads=2,
                vocab_size=50,
                q_lora_rank=8,
                kv_lora_rank=8,
                qk_rope_head_dim=4,
                qk_nope_head_dim=4,
                v_head_dim=4,
                intermediate_size=16,
                first_k_dense_replace=1,
            ),
            "latent",
        ),
    ],
    ids=["mamba", "bloom", "t5", "bert", "mpt_alibi", "falcon_alibi", "deepseek"],
)
def test_models_that_cannot_be_served_are_refused_with_the_reason(make_config, reason):
    with pytest.raises(ModelLoadError, match=reason):
        layers_of(make_config())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Falcon", "does not attend through transformers' attention interface"),
        ("Nemotron", "does not attend through transformers' attention interface"),
        ("Doge", "makes an attention mask of its own"),
    ],
)
def test_models_that_bypass_the_interface_or_mask_are_told_so_plainly(name, reason):
    config = getattr(transformers, f"{name}Config")(**SMALL)
    with pytest.raises(ModelLoadError, match=reason) as error:
        layers_of(config)
    assert "Error:" not in str(error.value)


def test_a_mask_argument_by_keyword_without_a_mask_is_served():
    config = transformers.AfmoeConfig(**SMALL, head_dim=8, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16)
    assert len(layers_of(config)) == 2


@pytest.mark.parametrize(("uses_rope", "served"), [([1, 1], True), ([1, 0], False)])
def test_llama4_temperature_tuning_is_refused_only_where_a_layer_uses_it(uses_rope, served):
    config = transformers.Llama4TextConfig(
        **SMALL, head_dim=8, intermediate_size_mlp=48, num_local_experts=2, attn_temperature_tuning=True, no_rope_layers=uses_rope
    )
    if served:
        assert len(layers_of(config)) == 2
    else:
        with pytest.raises(ModelLoadError, match="attn_temperature_tuning"):
            layers_of(config)
