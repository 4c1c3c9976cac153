"""`slotwise bench model` and `bench quality`: what they measure and how they tell it; never how fast."""

from __future__ import annotations

import json

import pytest
from transformers import LlamaConfig

from slotwise.cli import main
from slotwise_contrib.bench import model_runs
from slotwise_contrib.bench.model_runs import WORKLOADS, Workload


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("bench_model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(path)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, bos_token_id=None, eos_token_id=256, tie_word_embeddings=True,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return str(path)


@pytest.fixture
def tiny_workloads(monkeypatch):
    for name in ("W1", "W2"):
        lens = (8,) if name == "W1" else (5, 9, 9)
        monkeypatch.setitem(WORKLOADS, name, Workload(name=name, title="tiny", prompt_lens=lens, num_new=4))


def test_arms_take_turns_and_each_has_its_rows(model, tiny_workloads, capsys, monkeypatch):
    order = []
    run_once = model_runs.run_once
    monkeypatch.setattr(model_runs, "run_once", lambda llm, workload, run: order.append((id(llm), run)) or run_once(llm, workload, run))
    arms = ("--arm", "kv_cache.num_blocks=64", "--arm", "kv_cache.num_blocks=64,linear=int8")
    assert main(["bench", "model", "-m", model, *arms, "--workloads", "W1,W2", "--runs", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(times["arm"].endswith("int8"), times["workload"]) for times in found["times"]] == [
        (False, "W1"), (True, "W1"), (False, "W2"), (True, "W2"),
    ]  # fmt: skip
    assert all(times["wall_s"]["num_samples"] == 2 for times in found["times"])
    assert [times["decode_tokens_per_s"] is None for times in found["times"]] == [False, False, True, True]
    first, second = dict.fromkeys(engine for engine, _ in order)
    assert [engine == first for engine, _ in order[:6]] == [True, False, False, True, True, False]
    assert second != first


def test_the_table_names_arms_and_workloads(model, tiny_workloads, capsys):
    assert main(["bench", "model", "-m", model, "--arm", "kv_cache.num_blocks=64", "--workloads", "W1", "--runs", "1"]) == 0
    out = capsys.readouterr().out
    assert "W1: tiny" in out
    assert "kv_cache.num_blocks=64" in out


def test_quality_is_worse_with_fewer_bits(model, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 20)
    arms = [argument for bits in ("dense", "int8", "int4") for argument in ("--arm", f"linear={bits},kv_cache.num_blocks=64")]
    command = ["bench", "quality", "-m", model, "--text", str(text), *arms, "--windows", "3", "--window", "64", "--json"]
    assert main(command) == 0
    dense, int8, int4 = json.loads(capsys.readouterr().out)
    assert dense["kl"] == 0
    assert dense["top_1_agreement"] == 1
    assert 0 < int8["kl"] < int4["kl"]
    assert dense["perplexity"] == pytest.approx(int8["perplexity"], rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model", "-m", "x", "--workloads", "W9"), "W1, W2, W3, W4"),
        (("model", "-m", "x", "--arm", "linaer=int8"), "linear"),
        (("quality", "-m", "x", "--text", "no-such-file"), "no-such-file"),
    ],
)
def test_mistakes_are_named(capsys, arguments, message):
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_prompts_differ_from_run_to_run_and_share_what_they_should():
    workload = WORKLOADS["W3"]
    first, second = workload.prompts(0, 5000), workload.prompts(1, 5000)
    assert len({tuple(prompt[:512]) for prompt in first}) == 1
    assert len({tuple(prompt[512:]) for prompt in first}) == 32
    assert first[0] != second[0]
    assert workload.prompts(0, 5000) == first
