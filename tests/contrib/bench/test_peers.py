"""`slotwise bench peers`: engines in processes of their own, in turns; here this engine plays all parts."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from slotwise.cli import main
from slotwise_contrib.bench import peer_runs
from slotwise_contrib.bench.model_runs import WORKLOADS, Workload


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Without a tokenizer, and with as many ids as prompts may have."""
    path = tmp_path_factory.mktemp("peers_model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=48000, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=8192, bos_token_id=None, eos_token_id=2, tie_word_embeddings=True,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return str(path)


@pytest.fixture(autouse=True)
def tiny_workloads(monkeypatch):
    for name, lens, num_new in (("W1", (8,), 4), ("W2", (5, 9, 9), 4), ("W4", (20,), 1)):
        monkeypatch.setitem(WORKLOADS, name, Workload(name=name, title="tiny", prompt_lens=lens, num_new=num_new))


def test_engines_take_turns_and_tell_start_memory_and_times(model, capsys, monkeypatch):
    order = []
    run = peer_runs.Peer.run
    monkeypatch.setattr(peer_runs.Peer, "run", lambda peer, *work: order.append(peer.result.spec.label) or run(peer, *work))
    small = f"{model},kv_cache.num_blocks=400"
    command = ["bench", "peers", "--ours", f"a={small}", "--ours", f"b={small},linear=int8", "--workloads", "W2,W1,W4", "--runs", "2"]
    assert main([*command, "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert [first["spec"]["label"], second["spec"]["label"]] == ["a", "b"]
    for found in (first, second):
        assert found["start_s"] > 0.1
        assert found["peak_rss_mib"] > 50
        assert list(found["times"]) == ["W2", "W1", "W4"]
        assert found["times"]["W1"]["decode_tokens_per_s"] is not None
        assert found["times"]["W2"]["decode_tokens_per_s"] is None
        assert all(times["wall_s"]["num_samples"] == 2 for times in found["times"].values())
    assert order[:6] == ["b", "a", "a", "b", "b", "a"]


def test_an_engine_that_cannot_start_is_told_with_what_it_printed(model, capsys):
    assert main(["bench", "peers", "--peer", f"x=llama_cpp,{sys.executable},{model}", "--workloads", "W1"]) != 0
    assert "llama_cpp" in capsys.readouterr().err
