"""GGUF files written here in llama.cpp's layout must load as the safetensors model they came from."""

from __future__ import annotations

from contextlib import suppress

import gguf
import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotwise.errors import WeightsError
from slotwise.interfaces.linear import BlockRows
from slotwise.interfaces.model import WeightsSetup
from slotwise_plugins.weights.blocks import as_dense
from slotwise_plugins.weights.gguf_weights import GgufWeights
from slotwise_plugins.weights.random_weights import RandomWeights

COMMON = {
    "vocab_size": 101,  # no multiple of 64
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**COMMON),
    "qwen2": lambda: transformers.Qwen2Config(**COMMON),
    "qwen3": lambda: transformers.Qwen3Config(**COMMON, head_dim=8),
    "gemma2": lambda: transformers.Gemma2Config(**COMMON, head_dim=8),
    "gemma3": lambda: transformers.Gemma3TextConfig(**COMMON, head_dim=8),
    "phi3": lambda: transformers.Phi3Config(**COMMON, pad_token_id=0),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=101, n_embd=32, n_layer=2, n_head=4),
}


def interleave_halves(weight, num_heads):
    """llama.cpp's order of query and key rows, stated by index: stored row 2 i + j of a head is row j * head_dim / 2 + i."""
    head_dim = weight.shape[0] // num_heads
    order = [h * head_dim + j * head_dim // 2 + i for h in range(num_heads) for i in range(head_dim // 2) for j in range(2)]
    return weight[order]


def converted(architecture, name, tensor, config):
    """What llama.cpp's converter stores for a Hugging Face tensor."""
    if architecture == "llama" and "q_proj" in name:
        return interleave_halves(tensor, config.num_attention_heads)
    if architecture == "llama" and "k_proj" in name:
        return interleave_halves(tensor, config.num_key_value_heads)
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return tensor + 1
    if architecture == "gpt2" and tensor.ndim == 2 and ("c_attn" in name or "c_proj" in name or "c_fc" in name):
        return tensor.T
    return tensor


def write_gguf(path, architecture, config, tensors, quantization=None, extra=()):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_array("tokenizer.ggml.tokens", [f"token {i}" for i in range(200)])
    key = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(key, config.num_hidden_layers)
    for name, tensor in tensors.items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        data = np.ascontiguousarray(converted(architecture, name, tensor, config).numpy())
        if quantization is not None and data.ndim == 2:
            writer.add_tensor(stored, gguf.quants.quantize(data, quantization), raw_dtype=quantization)
        else:
            writer.add_tensor(stored, data)
    for name, data in extra:
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def original(config):
    return dict(RandomWeights(WeightsSetup(path=None, hf_config=config)).tensors())


def open_weights(path, config):
    return GgufWeights(WeightsSetup(path=path, hf_config=config))


@pytest.mark.parametrize("architecture", sorted(CONFIGS))
def test_loads_bit_equal_to_the_safetensors_model(tmp_path, architecture):
    config = CONFIGS[architecture]()
    tensors = original(config)
    if architecture.startswith("gemma"):  # x + 1 - 1 must be exact for the comparison
        tensors = {name: (tensor * 64).round() / 64 for name, tensor in tensors.items()}
    weights = open_weights(write_gguf(tmp_path / "model.gguf", architecture, config, tensors), config)
    read = dict(weights.tensors())
    assert read.keys() == tensors.keys()
    assert weights.num_tensors == len(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(read[name], tensor), name


def test_only_query_and_key_rows_move_in_a_llama_file(tmp_path):
    """Control for the round trip: what lies in the file differs from the model for exactly these two kinds."""
    config = CONFIGS["llama"]()
    tensors = original(config)
    path = write_gguf(tmp_path / "model.gguf", "llama", config, tensors)
    stored = {tensor.name: torch.from_numpy(np.array(tensor.data)) for tensor in gguf.GGUFReader(path).tensors}
    layer = "model.layers.0.self_attn"
    assert not torch.equal(stored["blk.0.attn_q.weight"], tensors[f"{layer}.q_proj.weight"])
    assert not torch.equal(stored["blk.0.attn_k.weight"], tensors[f"{layer}.k_proj.weight"])
    assert torch.equal(stored["blk.0.attn_v.weight"], tensors[f"{layer}.v_proj.weight"])


@pytest.mark.parametrize("quantization", ["Q4_0", "Q4_1", "Q8_0", "F16", "BF16"])
def test_dequantises(tmp_path, quantization):
    kind = gguf.GGMLQuantizationType[quantization]
    config = CONFIGS["qwen2"]()
    tensors = original(config)
    read = dict(open_weights(write_gguf(tmp_path / "model.gguf", "qwen2", config, tensors, kind), config).tensors())
    for name, tensor in tensors.items():
        expected = (
            tensor if tensor.ndim == 1 else torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(tensor.numpy(), kind), kind))
        )
        assert read[name].dtype == torch.float32
        assert torch.equal(read[name], expected), name


@pytest.mark.parametrize("quantization", ["F32", "Q4_0", "Q4_1", "Q8_0", "BF16"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma2", "gpt2"])
def test_blocks_are_the_dense_matrices_in_another_form(tmp_path, architecture, quantization):
    """Llama's query and key rows move as blocks too; GPT-2's matrices are turned, which blocks cannot be."""
    kind = None if quantization == "F32" else gguf.GGMLQuantizationType[quantization]
    config = CONFIGS[architecture]()
    path = write_gguf(tmp_path / "model.gguf", architecture, config, original(config), kind)
    dense = dict(open_weights(path, config).tensors())
    kept = dict(GgufWeights(WeightsSetup(path=path, hf_config=config, block_schemes=(quantization,))).tensors())
    assert kept.keys() == dense.keys()
    in_blocks = {name for name, tensor in kept.items() if isinstance(tensor, BlockRows)}
    assert in_blocks == {name for name, tensor in dense.items() if tensor.ndim == 2 and architecture != "gpt2"}
    for name, tensor in kept.items():
        assert tuple(tensor.shape) == tuple(dense[name].shape)
        assert torch.equal(as_dense(tensor), dense[name]), name


def test_blocks_that_nobody_asked_for_come_dense(tmp_path):
    config = CONFIGS["llama"]()
    path = write_gguf(tmp_path / "model.gguf", "llama", config, original(config), gguf.GGMLQuantizationType.Q8_0)
    weights = GgufWeights(WeightsSetup(path=path, hf_config=config, block_schemes=("Q4_K",)))
    assert all(isinstance(tensor, torch.Tensor) for _, tensor in weights.tensors())


def test_a_stored_head_of_a_tied_model_comes_under_its_own_name(tmp_path):
    config = transformers.LlamaConfig(**COMMON, tie_word_embeddings=True)
    tensors = original(config)
    head = tensors["model.embed_tokens.weight"].numpy()
    path = write_gguf(tmp_path / "model.gguf", "llama", config, tensors, extra=[("output.weight", head)])
    assert torch.equal(dict(open_weights(path, config).tensors())["lm_head.weight"], tensors["model.embed_tokens.weight"])


def test_unknown_tensors_keep_their_name_so_that_loading_reports_them(tmp_path):
    config = CONFIGS["qwen2"]()
    path = write_gguf(tmp_path / "model.gguf", "qwen2", config, original(config), extra=[("blk.0.mystery.weight", np.ones(4, np.float32))])
    assert "blk.0.mystery.weight" in dict(open_weights(path, config).tensors())


def test_rotary_tables_are_left_out_with_a_warning_if_the_config_lacks_them(tmp_path, caplog):
    config = CONFIGS["llama"]()
    path = write_gguf(tmp_path / "model.gguf", "llama", config, original(config), extra=[("rope_freqs.weight", np.ones(4, np.float32))])
    assert "rope_freqs.weight" not in dict(open_weights(path, config).tensors())
    assert "rope_freqs.weight" in caplog.text


def test_unsupported_architecture_lists_the_supported_ones(tmp_path):
    config = CONFIGS["llama"]()
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_tensor("a", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(WeightsError, match=r"'mamba'.*llama.*qwen3"):
        open_weights(path, config)


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    config = CONFIGS["llama"]()
    path = write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf", "llama", config, original(config))
    return config, path.read_bytes()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_refused_by_name(small_file, tmp_path, part):
    config, content = small_file
    path = tmp_path / "cut.gguf"
    path.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(WeightsError, match=r"cut\.gguf"):
        open_weights(path, config)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(4, 4000), st.integers(0, 255))
def test_a_flipped_byte_in_the_head_never_ends_in_another_error(small_file, tmp_path, position, value):
    config, content = small_file
    path = tmp_path / "flipped.gguf"
    path.write_bytes(content[:position] + bytes([value]) + content[position + 1 :])
    with suppress(WeightsError):
        open_weights(path, config)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a gguf file at all, but long enough to have a header", b"FUGG" + bytes(100)])
def test_a_file_that_is_no_gguf_is_refused_by_name(tmp_path, content):
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"other\.gguf"):
        open_weights(path, CONFIGS["llama"]())


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(WeightsError, match=r"one \.gguf file"):
        open_weights(tmp_path, CONFIGS["llama"]())
