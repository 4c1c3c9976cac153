"""`LLM` as its users call it: outputs, limits, bad input, and that one request never hurts another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from slotwise import LLM, OutputKind, RequestOutput, SamplingParams
from slotwise.errors import ConfigError, InvalidRequestError, ModelLoadError, PromptTooLongError, QueueFullError, SlotwiseError
from slotwise.interfaces.model import ForwardBatch, ModelOutput

if TYPE_CHECKING:
    from conftest import SharedModel

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def ids_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def greedy(max_tokens: int = 8, **params: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **{"ignore_eos": True, **params})


@pytest.fixture
def llm(tiny: SharedModel, assert_idle: Callable[[LLM], None]) -> Any:
    """An engine that must be idle, and serve one more plain request, after every test."""
    engine = tiny.engine()
    yield engine
    assert_idle(engine)
    assert len(engine.generate("hello", GREEDY)[0].outputs[0].token_ids) == 8
    assert_idle(engine)


def test_text_and_ids_of_an_output_belong_together(llm: LLM) -> None:
    output = llm.generate("hello", GREEDY)[0]
    completion = output.outputs[0]
    assert output.prompt == "hello"
    assert llm.tokenizer is not None
    assert output.prompt_token_ids == llm.tokenizer.encode("hello")
    assert completion.text == llm.tokenizer.decode(completion.token_ids, skip_special_tokens=True)
    assert completion.finish_reason == "length"
    assert output.finished


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["a" * length for length in (50, 3, 20, 1)]
    alone = [llm.generate(prompt, GREEDY)[0].outputs[0].token_ids for prompt in prompts]
    together = llm.generate(prompts, [greedy(8), greedy(2), greedy(5), greedy(1)])
    assert ids_of(together) == [ids[:count] for ids, count in zip(alone, (8, 2, 5, 1), strict=True)]


def test_chat_uses_the_template_once(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    by_chat = llm.chat(messages, GREEDY)[0]
    by_text = llm.generate("[user]hi[answer]", GREEDY)[0]
    assert by_chat.prompt_token_ids == by_text.prompt_token_ids
    assert ids_of([by_chat]) == ids_of([by_text])
    assert len(llm.chat([messages, messages], GREEDY)) == 2


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ("", InvalidRequestError),
        ([[]], InvalidRequestError),
        ([], InvalidRequestError),
        ({"prompt_token_ids": []}, InvalidRequestError),
        ([257], InvalidRequestError),
        ([-1], InvalidRequestError),
        ([2**63 - 1], InvalidRequestError),
        ([2**64], InvalidRequestError),
        ([[1.0]], InvalidRequestError),
        ([[True]], InvalidRequestError),
        ([1, 2, 999, 3], InvalidRequestError),
        ("x" * 256, PromptTooLongError),
        ({"text": "x"}, InvalidRequestError),
        (7, InvalidRequestError),
    ],
)
def test_a_bad_prompt_is_refused_and_its_neighbour_is_served(llm: LLM, prompt: Any, kind: type[Exception]) -> None:
    """Known bugs 25 and 27."""
    llm.engine.add_request("neighbour", GREEDY, request_id="neighbour")
    with pytest.raises(kind):
        llm.generate(prompt, GREEDY)
    outputs = []
    while llm.engine.has_unfinished_requests:
        outputs += [output for output in llm.engine.step() if output.finished]
    assert [(output.request_id, len(output.outputs[0].token_ids)) for output in outputs] == [("neighbour", 8)]


def test_one_bad_prompt_among_good_ones_runs_none_of_them(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="257"):
        llm.generate([[1, 2], [257]], GREEDY)


def test_the_last_vocabulary_row_is_a_legal_prompt(llm: LLM) -> None:
    assert len(llm.generate([[256]], GREEDY)[0].outputs[0].token_ids) == 8


@pytest.mark.parametrize(
    ("length", "max_tokens", "expected"), [(255, 10, 1), (255, None, 1), (255, 1, 1), (250, 100, 6), (250, None, 6), (8, 248, 248)]
)
def test_the_context_limit_counts_prompt_and_output(llm: LLM, length: int, max_tokens: int | None, expected: int) -> None:
    """Known bug 23."""
    output = llm.generate([[1] * length], SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True))[0]
    assert len(output.outputs[0].token_ids) == expected
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("length", [256, 257])
def test_a_prompt_at_or_over_the_limit_names_both_numbers(llm: LLM, length: int) -> None:
    with pytest.raises(PromptTooLongError, match=rf"{length} tokens.*256"):
        llm.generate([[1] * length], GREEDY)


def test_a_request_that_can_never_fit_the_pool_is_refused_and_the_others_finish(
    tiny: SharedModel, assert_idle: Callable[[LLM], None]
) -> None:
    """Known bug 15."""
    llm = tiny.engine(block_size=4, kv_cache={"num_blocks": 8})
    with pytest.raises(PromptTooLongError, match=r"100 tokens.*32"):
        llm.generate([[1] * 100], GREEDY)
    assert ids_of(llm.generate([[1] * 5, [2] * 5, [3] * 5], greedy(3))) == ids_of(
        tiny.engine().generate([[1] * 5, [2] * 5, [3] * 5], greedy(3))
    )
    long = llm.generate([[1] * 20], greedy(200))[0]
    assert long.outputs[0].finish_reason == "length"
    assert len(long.outputs[0].token_ids) == 13
    assert_idle(llm)


@pytest.mark.parametrize("num_blocks", [2, 3])
def test_a_whole_prompt_in_the_cache_still_gives_the_same_tokens(
    tiny: SharedModel, num_blocks: int, assert_idle: Callable[[LLM], None]
) -> None:
    """Known bug 1: exact multiples of the block, one block, block + 1, and a second run while the first still decodes."""
    llm = tiny.engine(block_size=16)
    for length, cached in ((32, 16), (16, 0), (17, 16)):
        prompt = [length] * length
        first, second = llm.generate([prompt], greedy(4))[0], llm.generate([prompt], greedy(4))[0]
        assert ids_of([first]) == ids_of([second])
        assert (first.num_cached_tokens, second.num_cached_tokens) == (0, cached)
    prompt = [num_blocks] * (16 * num_blocks)
    alone = ids_of(tiny.engine().generate([prompt], greedy(20)))[0]
    llm.engine.add_request(prompt, greedy(20), request_id="first")
    for _ in range(5):
        llm.engine.step()
    llm.engine.add_request(prompt, greedy(20), request_id="second")
    finished = {}
    while llm.engine.has_unfinished_requests:
        finished.update({output.request_id: output for output in llm.engine.step() if output.finished})
    assert ids_of([finished["first"], finished["second"]]) == [alone, alone]
    assert finished["second"].num_cached_tokens == 16 * (num_blocks - 1)
    assert_idle(llm)


def test_a_long_prompt_in_chunks_emits_nothing_before_its_last_chunk(tiny: SharedModel, assert_idle: Callable[[LLM], None]) -> None:
    """Known bug 9."""
    prompts = [[7] * 30, [8] * 3, [9] * 3]
    alone = [ids_of(tiny.engine().generate([prompt], greedy(5)))[0] for prompt in prompts]
    llm = tiny.engine(max_num_batched_tokens=8, max_num_seqs=4)
    for index, prompt in enumerate(prompts):
        llm.engine.add_request(
            prompt, SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True, output_kind=OutputKind.DELTA), request_id=f"r{index}"
        )
    emitted: dict[str, list[int]] = {}
    computed = 0
    while llm.engine.has_unfinished_requests:
        for output in llm.engine.step():
            emitted.setdefault(output.request_id, []).extend(output.outputs[0].token_ids)
        request = next((each for each in llm.engine.core.scheduler.requests.values() if each.num_prompt_tokens == 30), None)
        computed = request.num_computed_tokens if request else 30
        assert bool(emitted.get("r0")) == (computed >= 30)
    assert [emitted[f"r{index}"] for index in range(3)] == alone
    assert_idle(llm)


@pytest.mark.parametrize("settings", [{}, {"enable_prefix_caching": False}, {"max_num_batched_tokens": 8, "max_num_seqs": 4}])
def test_preemption_is_invisible_in_the_output(settings: dict[str, Any], tiny: SharedModel, assert_idle: Callable[[LLM], None]) -> None:
    """Known bug 11."""
    prompts = [[5] * 20, [6] * 20]
    expected = ids_of(tiny.engine().generate(prompts, greedy(40)))
    llm = tiny.engine(block_size=4, **{**settings, "kv_cache": {"num_blocks": 16, **settings.get("kv_cache", {})}})
    for index, prompt in enumerate(prompts):
        llm.engine.add_request(prompt, greedy(40, output_kind=OutputKind.DELTA), request_id=str(index))
    streams: dict[str, list[int]] = {"0": [], "1": []}
    texts = {"0": "", "1": ""}
    preempted = 0
    while llm.engine.has_unfinished_requests:
        for output in llm.engine.step():
            streams[output.request_id] += output.outputs[0].token_ids
            texts[output.request_id] += output.outputs[0].text
        preempted = max([preempted, *(request.num_preemptions for request in llm.engine.core.scheduler.requests.values())])
    assert preempted > 0
    assert [streams["0"], streams["1"]] == expected
    assert llm.tokenizer is not None
    assert [texts["0"], texts["1"]] == [llm.tokenizer.decode(ids, skip_special_tokens=True) for ids in expected]
    assert_idle(llm)


def test_equal_ids_of_two_live_requests_do_not_mix(llm: LLM) -> None:
    """Known bug 21, and an abort followed at once by reuse of the id."""
    expected = ids_of(llm.generate([[1] * 4, [2] * 4], GREEDY))
    for prompt in ([1] * 4, [2] * 4):
        llm.engine.add_request(prompt, GREEDY, request_id="same")
    found = []
    while llm.engine.has_unfinished_requests:
        found += [output.outputs[0].token_ids for output in llm.engine.step() if output.finished]
    assert sorted(found) == sorted(expected)
    llm.engine.add_request([1] * 4, GREEDY, request_id="same")
    llm.engine.step()
    llm.engine.abort_requests(["same"])
    llm.engine.add_request([2] * 4, GREEDY, request_id="same")
    reasons = []
    while llm.engine.has_unfinished_requests:
        reasons += [output.outputs[0].finish_reason for output in llm.engine.step() if output.finished]
    assert sorted(reasons) == ["abort", "length"]


def test_abort_of_n_completions_ends_them_all(llm: LLM) -> None:
    """Known bug 19."""
    llm.engine.add_request("abc", SamplingParams(n=3, max_tokens=100, ignore_eos=True), request_id="many")
    for _ in range(3):
        llm.engine.step()
    assert llm.engine.core.stats().num_running == 3
    for ids in (["many"], ["many"], ["nobody"]):
        llm.engine.abort_requests(ids)
    assert llm.engine.core.stats().is_idle
    outputs = llm.engine.step()
    assert [completion.finish_reason for completion in outputs[0].outputs] == ["abort"] * 3


def test_n_completions_differ_and_share_the_prompt(llm: LLM) -> None:
    output = llm.generate([[3] * 40], SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=10, ignore_eos=True))[0]
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    assert len({tuple(completion.token_ids) for completion in output.outputs}) == 3


@pytest.mark.parametrize("companions", [[], [None], [7], [None, 7, None]])
def test_a_seed_isolates_its_request_from_the_batch(llm: LLM, companions: list[int | None]) -> None:
    """Known bug 41: alone, beside unseeded and seeded ones, in another row, after a global reseed."""

    def seeded(seed: int | None) -> SamplingParams:
        return SamplingParams(temperature=0.8, seed=seed, max_tokens=16, ignore_eos=True)

    alone = ids_of(llm.generate(["the sea"], seeded(42)))[0]
    torch.manual_seed(99)
    prompts = ["first", "other", "words"][: len(companions)]
    together = llm.generate([*prompts, "the sea"], [*(seeded(seed) for seed in companions), seeded(42)])
    assert ids_of(together)[-1] == alone


def test_a_seeded_result_depends_neither_on_chunks_nor_on_preemption(tiny: SharedModel, assert_idle: Callable[[LLM], None]) -> None:
    params = SamplingParams(temperature=0.9, seed=11, max_tokens=30, ignore_eos=True)
    prompts = [[4] * 20, [9] * 20]
    expected = ids_of(tiny.engine().generate(prompts, params))
    for settings in (
        {"max_num_batched_tokens": 6, "max_num_seqs": 4},
        {"block_size": 4, "kv_cache": {"num_blocks": 14}},
        {"block_size": 4, "kv_cache": {"num_blocks": 14, "enable_prefix_caching": False}},
    ):
        llm = tiny.engine(**settings)
        assert ids_of(llm.generate(prompts, params)) == expected, settings
        assert_idle(llm)


def test_two_unseeded_runs_differ(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=16, ignore_eos=True)
    first, second = (ids_of(llm.generate(["the sea"], params)) for _ in range(2))
    assert first != second


def test_logprobs_of_sampled_tokens_come_first_with_their_rank(llm: LLM) -> None:
    completion = llm.generate("hello", greedy(5, logprobs=3))[0].outputs[0]
    assert completion.logprobs is not None
    for token_id, entries in zip(completion.token_ids, completion.logprobs, strict=True):
        first = next(iter(entries))
        assert first == token_id
        assert entries[first].rank == 1
        assert len(entries) == 3
        assert all(entry.logprob <= entries[first].logprob for entry in entries.values())


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 16, "max_num_seqs": 4}])
def test_prompt_logprobs_do_not_depend_on_chunks_or_a_warm_cache(
    settings: dict[str, Any], tiny: SharedModel, assert_idle: Callable[[LLM], None]
) -> None:
    """Known bug 53."""
    prompt = [(7 * index) % 250 for index in range(40)]
    params = greedy(2, prompt_logprobs=2)
    cold = tiny.engine().generate([prompt], params)[0].prompt_logprobs
    llm = tiny.engine(**settings)
    llm.generate([prompt], GREEDY)
    warm = llm.generate([prompt], params)[0]
    assert warm.num_cached_tokens == 0
    assert cold is not None
    assert warm.prompt_logprobs is not None
    assert len(cold) == len(warm.prompt_logprobs) == 40
    assert cold[0] is warm.prompt_logprobs[0] is None
    for position in range(1, 40):
        one, other = cold[position], warm.prompt_logprobs[position]
        assert one is not None
        assert other is not None
        assert prompt[position] in other
        assert one.keys() == other.keys()
        assert all(abs(one[token].logprob - other[token].logprob) < 1e-4 for token in one)
    assert llm.generate([prompt], GREEDY)[0].num_cached_tokens == 32
    assert_idle(llm)


def test_prompt_logprobs_equal_the_models_own(tiny: SharedModel, tiny_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    prompt = [(11 * index) % 250 for index in range(12)]
    found = tiny.engine().generate([prompt], greedy(1, prompt_logprobs=0))[0].prompt_logprobs
    assert found is not None
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)
    with torch.inference_mode():
        expected = torch.log_softmax(model(torch.tensor([prompt])).logits[0], dim=-1)
    for position in range(1, 12):
        entries = found[position]
        assert entries is not None
        assert entries[prompt[position]].logprob == pytest.approx(float(expected[position - 1, prompt[position]]), abs=1e-4)


def test_stop_strings_and_stop_ids_end_a_request(llm: LLM) -> None:
    full = llm.generate("hello", greedy(32))[0].outputs[0]
    letter = full.text[5]
    stopped = llm.generate("hello", greedy(32, stop=[letter]))[0].outputs[0]
    assert stopped.text == full.text[: full.text.index(letter)]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", letter)
    token = full.token_ids[5]
    by_id = llm.generate("hello", greedy(32, stop_token_ids=[token]))[0].outputs[0]
    assert by_id.token_ids == full.token_ids[: full.token_ids.index(token) + 1]
    assert (by_id.finish_reason, by_id.stop_reason) == ("stop", token)


@pytest.mark.parametrize(("min_tokens", "length"), [(0, 1), (1, 2), (4, 5), (31, 32), (32, 32)])
def test_min_tokens_releases_the_end_exactly_on_time(llm: LLM, min_tokens: int, length: int) -> None:
    """Known bug 45."""
    params = SamplingParams(temperature=0.0, max_tokens=32, min_tokens=min_tokens, logit_bias={256: 100.0})
    completion = llm.generate("hello", params)[0].outputs[0]
    assert len(completion.token_ids) == length
    assert completion.finish_reason == ("length" if min_tokens == 32 else "stop")
    assert all(token != 256 for token in completion.token_ids[:min_tokens])


class ScriptedLogits:
    """Replaces the logits of a running engine's model by constant ones, or spoils those of one prompt."""

    def __init__(self, llm: LLM, edit: Callable[[torch.Tensor, ForwardBatch], torch.Tensor]) -> None:
        self._model = llm.engine.core.executor.model  # type: ignore[attr-defined]
        self._forward = self._model.forward
        self._edit = edit

    def __enter__(self) -> None:
        def forward(batch: ForwardBatch) -> ModelOutput:
            return ModelOutput(logits=self._edit(self._forward(batch).logits, batch))

        self._model.forward = forward

    def __exit__(self, *_: object) -> None:
        self._model.forward = self._forward


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_penalties_see_the_token_just_generated(tiny: SharedModel, async_scheduling: bool) -> None:
    """Known bug 37."""
    llm = tiny.engine(scheduler={"async_scheduling": async_scheduling})
    constant = torch.full((257,), 1.0)
    constant[3], constant[4] = 5.0, 4.0

    with ScriptedLogits(llm, lambda logits, _: constant.repeat(len(logits), 1)):
        for penalty in ({"presence_penalty": 1.5}, {"repetition_penalty": 2.0}):
            assert ids_of(llm.generate([[9, 9]], greedy(2, **penalty)))[0] == [3, 4]
        assert ids_of(llm.generate([[9, 9]], greedy(2)))[0] == [3, 3]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "all -inf"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unusable_logits_end_that_request_alone(llm: LLM, bad: Any, temperature: float) -> None:
    """Known bug 39."""
    params = SamplingParams(temperature=temperature, seed=1, top_k=20, top_p=0.9, max_tokens=6, ignore_eos=True)
    prompts = [[1] * 20, [66] * 20, [3] * 20]
    healthy = ids_of(llm.generate(prompts, params))
    llm.engine.core.reset_prefix_cache()

    def spoil(logits: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        logits = logits.clone()
        for row, index in enumerate(batch.logits_indices.tolist()):
            if batch.input_ids[index] == 66 and batch.positions[index] == 19:
                logits[row, slice(None) if bad == "all -inf" else 7] = float("-inf") if bad == "all -inf" else bad
        return logits

    with ScriptedLogits(llm, spoil):
        outputs = llm.generate(prompts, params)
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "error", "length"]
    assert outputs[1].error is not None
    assert [ids_of(outputs)[index] for index in (0, 2)] == [healthy[0], healthy[2]]
    again = llm.generate([prompts[1]], params)[0]
    assert again.num_cached_tokens == 0
    assert ids_of([again])[0] == healthy[1]


def test_a_step_that_raises_loses_its_requests_and_nothing_else(llm: LLM) -> None:
    def explode(logits: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        raise RuntimeError("the device caught fire")

    expected = ids_of(llm.generate([[5] * 40], GREEDY))
    llm.engine.core.reset_prefix_cache()
    with ScriptedLogits(llm, explode), pytest.raises(RuntimeError, match="caught fire"):
        llm.generate([[5] * 40], GREEDY)
    again = llm.generate([[5] * 40], GREEDY)
    assert again[0].num_cached_tokens == 0
    assert ids_of(again) == expected


def test_too_many_waiting_requests_are_refused(tiny: SharedModel, assert_idle: Callable[[LLM], None]) -> None:
    llm = tiny.engine(scheduler={"max_num_waiting": 2})
    with pytest.raises(QueueFullError, match="max_num_waiting"):
        llm.generate(["a", "b", "c"], GREEDY)
    assert len(llm.generate(["a", "b"], GREEDY)) == 2
    assert_idle(llm)


def test_cache_salts_keep_prefixes_apart(llm: LLM) -> None:
    prompt = [8] * 40

    def cached(salt: str | None) -> int:
        llm.engine.add_request(prompt, GREEDY, cache_salt=salt)
        while True:
            for output in llm.engine.step():
                if output.finished:
                    return output.num_cached_tokens

    assert [cached(salt) for salt in ("a", "a", "b", None, None)] == [0, 32, 0, 0, 32]


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"attention": "torch_spda"}, SlotwiseError, "torch_sdpa"),
        ({"attention": {"use": "torch_sdpa", "options": {"colour": "red"}}}, ConfigError, "colour"),
        ({"schedular": "fcfs"}, ConfigError, "scheduler"),
        ({"block_size": 0}, ConfigError, "block_size"),
        ({"max_model_len": 100_000}, ConfigError, "256"),
        ({"kv_cache": {"num_blocks": 4, "memory_mib": 4}}, ConfigError, "memory_mib"),
        ({"max_num_batched_tokens": 4}, ConfigError, "max_num_seqs"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 100}, ConfigError, "chunked"),
        ({"device": "cuda:7"}, ConfigError, "cuda:7"),
    ],
)
def test_a_wrong_setting_is_a_clear_error(tiny_model: Path, arguments: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        LLM(str(tiny_model), **arguments)


def test_an_unknown_model_names_what_is_known() -> None:
    with pytest.raises(ModelLoadError, match="smollm2"):
        LLM("smolm2")


def test_a_configuration_without_a_model_says_so() -> None:
    with pytest.raises(ConfigError, match=r"model\.source"):
        LLM()


def test_a_config_file_selects_components_and_their_settings(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "engine.toml"
    file.write_text(
        f'model = "{tiny_model}"\nattention = "reference"\n'
        '[scheduler]\nuse = "priority"\nmax_num_seqs = 3\n'
        "[kv_cache]\nenable_prefix_caching = false\n"
    )
    with LLM(config=file) as llm:
        assert {(part.slot, part.name) for part in llm.components} >= {("attention", "reference"), ("scheduler", "priority")}
        assert [output.num_cached_tokens for output in llm.generate([[1] * 40], GREEDY) + llm.generate([[1] * 40], GREEDY)] == [0, 0]
