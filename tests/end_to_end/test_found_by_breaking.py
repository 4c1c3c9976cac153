"""Cases that a hostile tester tried and that hold: they stay here so that they go on holding."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, PreTrainedModel

from slotwise import LLM, SamplingParams
from slotwise.sampling_params import OutputKind

if TYPE_CHECKING:
    from conftest import SharedModel

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def ids(llm: LLM, prompts: list[list[int]], params: Any = GREEDY) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


@pytest.mark.parametrize("settings", [{}, {"attention": "reference"}, {"scheduler": {"async_scheduling": True}}], ids=str)
@pytest.mark.parametrize("kv_cache", ["paged", "radix"])
def test_nan_of_one_request_reaches_no_other(
    settings: dict[str, Any], kv_cache: str, tmp_path: Path, tiny_model: Path, assert_idle: Callable[[LLM], None]
) -> None:
    """A token whose embedding is NaN poisons its request's KV; the blocks are reused uncleaned, and must not be found by a prefix."""
    shutil.copytree(tiny_model, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.embed_tokens.weight"][7] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    good, poisoned = [5, 9, 11] * 13, [1, 2, 3, 4] * 4 + [7] * 5
    llm = LLM(str(tmp_path), dtype="float32", kv_cache={"use": kv_cache, "num_blocks": 24, "block_size": 4}, **settings)
    (expected,) = ids(llm, [good])
    llm.engine.core.reset_prefix_cache()
    outputs = llm.generate([good, poisoned, good[:5], [7] * 30], GREEDY, use_tqdm=False)
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "error", "length", "error"]
    assert outputs[0].outputs[0].token_ids == expected
    assert ids(llm, [good, [7, 1], good]) == [expected, [], expected]
    assert llm.generate([poisoned], GREEDY, use_tqdm=False)[0].num_cached_tokens == 0
    assert_idle(llm)
    llm.shutdown()


@pytest.mark.parametrize("part", ["_build_output", "_new_request_data"])
@pytest.mark.parametrize("kv_cache", ["paged", "radix"])
def test_an_exception_while_scheduling_leaves_no_unwritten_block_in_the_prefix_cache(
    part: str, kv_cache: str, tiny: SharedModel, monkeypatch: pytest.MonkeyPatch, assert_idle: Callable[[LLM], None]
) -> None:
    prompt = [(7 * index) % 250 + 1 for index in range(70)]
    (expected,) = ids(tiny.engine(), [prompt])
    llm = tiny.engine(kv_cache={"use": kv_cache, "num_blocks": 64})

    def explode(*_: object) -> None:
        raise RuntimeError("a fault in a policy")

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.core.scheduler, part, explode)
        with pytest.raises(RuntimeError, match="in a policy"):
            ids(llm, [prompt])
    assert_idle(llm)
    assert ids(llm, [prompt]) == [expected]


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 0.707},
        {"rope_type": "linear", "factor": 2.0},
    ],
    ids=lambda rope: "-".join(map(str, rope.values())),
)
def test_scaled_rope_equals_transformers(
    rope: dict[str, Any],
    tmp_path: Path,
    shared_model: type[SharedModel],
    save_tiny_model: Callable[..., PreTrainedModel],
    greedy_of: Callable[..., list[list[int]]],
) -> None:
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        rope_parameters={"rope_theta": 10000.0, **rope},
    )
    reference = save_tiny_model(tmp_path, config)
    prompts = [[(7 * row + column) % 255 + 1 for column in range(length)] for row, length in enumerate((1, 13, 60, 90))]
    llm = shared_model(str(tmp_path), dtype="float32").engine(max_num_batched_tokens=16, max_num_seqs=4)
    assert ids(llm, prompts, SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)) == greedy_of(reference, prompts, 12)


@pytest.mark.parametrize("kind", [OutputKind.DELTA, OutputKind.CUMULATIVE])
@pytest.mark.parametrize("stream_interval", [1, 4])
@pytest.mark.parametrize("include_stop", [False, True])
def test_streamed_completions_equal_whole_ones(kind: OutputKind, stream_interval: int, include_stop: bool, tiny: SharedModel) -> None:
    """n completions with stop strings, stop ids, logprobs and random bytes: text, ids and number of logprobs."""
    llm = tiny.engine()
    for seed in range(6):
        asked: dict[str, Any] = {
            "n": 3, "temperature": 1.0, "seed": seed, "max_tokens": 30, "min_tokens": seed % 3, "logprobs": 1, "stop": ["a", "qu", "z"],
            "stop_token_ids": list(range(seed, 250, 20)), "include_stop_str_in_output": include_stop,
        }  # fmt: skip
        prompt = [(31 * seed + 7 * index) % 250 for index in range(seed + 1)]
        (whole,) = llm.generate([prompt], SamplingParams(**asked), use_tqdm=False)
        llm.engine.add_request(prompt, SamplingParams(**asked, output_kind=kind, stream_interval=stream_interval))
        texts, tokens, counts = ["", "", ""], [[], [], []], [0, 0, 0]  # type: tuple[list[str], list[list[int]], list[int]]
        while llm.engine.has_unfinished_requests:
            for piece in (piece for output in llm.engine.step() for piece in output.outputs):
                index, joins = piece.index, kind is OutputKind.DELTA
                assert joins or piece.text.startswith(texts[index])
                texts[index] = texts[index] + piece.text if joins else piece.text
                tokens[index] = [*tokens[index], *piece.token_ids] if joins else list(piece.token_ids)
                counts[index] = (counts[index] if joins else 0) + len(piece.logprobs or ())
        assert texts == [completion.text for completion in whole.outputs]
        assert tokens == [completion.token_ids for completion in whole.outputs]
        assert counts == [len(completion.token_ids) for completion in whole.outputs]


def test_objects_of_the_caller_may_change_after_the_call(tiny: SharedModel, assert_idle: Callable[[LLM], None]) -> None:
    """Prompt, parameters and outputs are the caller's: writing to them changes no request, and no cached prefix."""
    llm = tiny.engine(kv_cache={"num_blocks": 7})
    prompt = [1, 2, 3] * 10
    (expected,) = ids(tiny.engine(), [prompt], SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))
    found = []
    for _ in range(2):
        given, params = list(prompt), SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
        llm.engine.add_request(given, params)
        given[:] = [9] * 30
        params.max_tokens = 1
    while llm.engine.has_unfinished_requests:
        for output in llm.engine.step():
            if output.finished:
                found.append(list(output.outputs[0].token_ids))
            output.outputs[0].token_ids.clear()
            output.prompt_token_ids[:] = [0] * len(output.prompt_token_ids)
    assert found == [expected, expected]
    assert_idle(llm)
