"""Shards, indexes and truncation, each told with the file's name before a tensor is read."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from slotwise.errors import WeightsError
from slotwise.interfaces.model import WeightsSetup
from slotwise_plugins.weights.safetensors_weights import SafetensorsWeights

TENSORS = {f"layer.{i}.weight": torch.arange(6, dtype=torch.float32).view(2, 3) + i for i in range(3)}


def open_weights(path):
    return SafetensorsWeights(WeightsSetup(path=path, hf_config=None))


@pytest.fixture
def checkpoint(tmp_path):
    """Three shards and their index."""
    weight_map = {}
    for i, (name, tensor) in enumerate(TENSORS.items(), start=1):
        file_name = f"model-{i:05d}-of-00003.safetensors"
        save_file({name: tensor}, tmp_path / file_name)
        weight_map[name] = file_name
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return tmp_path


def assert_holds_all(weights):
    read = dict(weights.tensors())
    assert read.keys() == TENSORS.keys()
    assert weights.num_tensors == 3
    assert all(torch.equal(read[name], tensor) for name, tensor in TENSORS.items())


def test_reads_the_shards_an_index_names(checkpoint):
    assert_holds_all(open_weights(checkpoint))


def test_reads_every_file_where_there_is_no_index(checkpoint):
    (checkpoint / "model.safetensors.index.json").unlink()
    assert_holds_all(open_weights(checkpoint))


def test_reads_a_single_file(tmp_path):
    save_file(TENSORS, tmp_path / "any.safetensors", metadata={"format": "pt"})
    assert_holds_all(open_weights(tmp_path / "any.safetensors"))
    assert_holds_all(open_weights(tmp_path))


def test_keeps_the_stored_dtype(tmp_path):
    save_file({"a": torch.ones(3, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    assert dict(open_weights(tmp_path).tensors())["a"].dtype == torch.bfloat16


def test_files_beside_the_index_are_left_alone(checkpoint):
    save_file({"extra": torch.ones(1)}, checkpoint / "adapter.safetensors")
    assert_holds_all(open_weights(checkpoint))


def test_names_a_missing_shard_and_hints_at_the_download(checkpoint):
    (checkpoint / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model-00002-of-00003\.safetensors.*incomplete"):
        open_weights(checkpoint)


@pytest.mark.parametrize("kept_bytes", [0, 4, 20, -1])
def test_names_a_truncated_shard(checkpoint, kept_bytes):
    shard = checkpoint / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:kept_bytes])
    with pytest.raises(WeightsError, match=r"model-00002-of-00003\.safetensors.*incomplete"):
        open_weights(checkpoint)


@given(st.binary(max_size=200))
def test_any_bytes_are_either_read_or_refused_by_name(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"model\.safetensors"):
        dict(open_weights(path).tensors())


def test_refuses_an_index_that_lists_a_tensor_twice(checkpoint):
    index = checkpoint / "model.safetensors.index.json"
    index.write_text(
        '{"weight_map": {"layer.0.weight": "model-00001-of-00003.safetensors", "layer.0.weight": "model-00002-of-00003.safetensors"}}'
    )
    with pytest.raises(WeightsError, match=r"layer\.0\.weight twice"):
        open_weights(checkpoint)


def test_refuses_an_index_whose_tensor_is_not_in_the_shard(checkpoint):
    index = checkpoint / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["layer.9.weight"] = "model-00001-of-00003.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(WeightsError, match=r"layer\.9\.weight.*model-00001"):
        open_weights(checkpoint)


@pytest.mark.parametrize("content", ["", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', "{"])
def test_refuses_a_broken_index_by_name(checkpoint, content):
    (checkpoint / "model.safetensors.index.json").write_text(content)
    with pytest.raises(WeightsError, match=r"model\.safetensors\.index\.json"):
        open_weights(checkpoint)


def test_refuses_an_index_that_leads_out_of_the_directory(checkpoint):
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    with pytest.raises(WeightsError, match="plain file name"):
        open_weights(checkpoint)


def test_refuses_a_tensor_in_two_files(checkpoint):
    (checkpoint / "model.safetensors.index.json").unlink()
    save_file({"layer.0.weight": torch.ones(2, 3)}, checkpoint / "old.safetensors")
    with pytest.raises(WeightsError, match=r"layer\.0\.weight is in both"):
        open_weights(checkpoint)


def test_says_that_pickle_files_are_not_read(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(WeightsError, match="pickle"):
        open_weights(tmp_path)


@pytest.mark.parametrize("path", [None, "absent"])
def test_refuses_no_path_and_a_path_to_nothing(tmp_path, path):
    with pytest.raises(WeightsError):
        open_weights(path and tmp_path / path)


@pytest.mark.parametrize("kind", ["broken link", "directory", "deep header", "offsets without end"])
def test_what_only_looks_like_a_file_is_named(tmp_path, kind):
    path = tmp_path / "model.safetensors"
    if kind == "broken link":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "directory":
        path.mkdir()
    else:
        endless = b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1e400]}}'
        header = b"[" * 200_000 if kind == "deep header" else endless
        path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(WeightsError, match=r"model\.safetensors"):
        SafetensorsWeights(WeightsSetup(path=tmp_path, hf_config=None))
