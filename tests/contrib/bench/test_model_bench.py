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
    assert "this machine reads" in out
    assert "MiB of weights allow" in out


def test_one_workload_has_a_command_of_its_own(model, tiny_workloads, capsys):
    assert main(["bench", "latency", "-m", model, "--arm", "kv_cache.num_blocks=64", "--runs", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [times["workload"] for times in found["times"]] == ["W1"]
    roof = found["roofs"]["kv_cache.num_blocks=64"]
    assert roof["decode_tokens_per_s"] == pytest.approx(found["ceilings"]["read_gb_per_s"] * 1e9 / (roof["weights_mib"] * 2**20))


def test_steps_of_decoding(model, capsys):
    sizes = ("--batches", "1,2", "--contexts", "8,16", "--waiting", "0,3", "--steps", "2")
    assert main(["bench", "steps", "-m", model, "--arm", "kv_cache.num_blocks=64", *sizes, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    cases = [(times["case"]["num_running"], times["case"]["context_len"], times["case"]["num_waiting"]) for times in found["steps"]]
    assert cases == [(1, 8, 0), (2, 8, 0), (1, 16, 0), (2, 8, 3)]
    assert all(times["step_ms"]["num_samples"] == 2 for times in found["steps"])
    for shares in found["shares"]:
        parts = [shares[part] for part in ("matrices", "row_operations", "attention", "sampler", "rest")]
        assert all(part > 0 for part in parts)


def test_shares_need_kernels_of_our_own(model, capsys):
    sizes = ("--batches", "1", "--contexts", "8", "--waiting", "0", "--steps", "1")
    assert main(["bench", "steps", "-m", model, "--arm", "kv_cache.num_blocks=64,model.use=transformers", *sizes]) == 0
    captured = capsys.readouterr()
    assert "fused" in captured.err
    assert "step ms" in captured.out


def test_startup_tells_each_stage(model, capsys):
    assert main(["bench", "startup", "-m", model, "--arm", "kv_cache.num_blocks=64", "--runs", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"import of torch", "import of transformers", "weights", "tokenizer", "first token"} < found.keys()
    stages = [seconds["median"] for name, seconds in found.items() if name != "in all"]
    assert found["in all"]["median"] == pytest.approx(sum(stages))


def test_products_of_linear_components(capsys):
    sizes = ("--components", "dense,torch", "--shapes", "32x64", "--rows", "1,3", "--rounds", "1")
    assert main(["bench", "linear", *sizes, "--json"]) == 0
    cases = json.loads(capsys.readouterr().out)["cases"]
    assert [(case["component"], case["num_rows"]) for case in cases] == [("dense", 1), ("dense", 3), ("torch", 1), ("torch", 3)]
    assert cases[0]["num_bytes"] == 32 * 64 * 2
    assert main(["bench", "linear", *sizes]) == 0
    assert "of the roof" in capsys.readouterr().out


def test_results_are_compared_by_what_they_are_of(tmp_path, capsys):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    entry = {"arm": "a", "wall_s": {"median": 2.0, "p10": 1.0}}
    first.write_text(json.dumps({"times": [entry, {**entry, "arm": "b"}]}))
    second.write_text(json.dumps({"times": [{**entry, "arm": "b"}, {"arm": "a", "wall_s": {"median": 3.0}}]}))
    assert main(["bench", "compare", str(first), str(second)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [(row[1], row[-1]) for row in rows] == [("[a]", "1.500"), ("[b]", "1.000")]
    second.write_text("{}")
    assert main(["bench", "compare", str(first), str(second)]) == 2
    assert "no figure in common" in capsys.readouterr().err
    assert main(["bench", "compare", str(first), str(tmp_path / "none.json")]) == 2


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
        (("peers",), "--ours"),
        (("peers", "--peer", "x=unknown,python,model"), "llama_cpp, openvino, vllm, transformers"),
        (("peers", "--ours", "no-label"), "LABEL=MODEL"),
        (("linear", "--shapes", "3072"), "3072x576"),
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
