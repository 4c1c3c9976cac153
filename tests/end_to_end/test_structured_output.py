"""Structured output of whole engines: the form always holds, and a bad grammar is the matter of its request alone."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import pre_tokenizers

from slotwise import LLM, AsyncLLM, SamplingParams, StructuredOutputsParams
from slotwise.engine.grammar_compiler import GrammarCompiler
from slotwise.errors import InvalidRequestError
from slotwise.interfaces.grammar import CompiledGrammar, GrammarBackend, GrammarError, GrammarMatcher, GrammarSpec
from slotwise.interfaces.model import ForwardBatch, ModelOutput
from slotwise_plugins.grammar.llguidance_backend import LlguidanceBackend
from slotwise_plugins.grammar.options import LLGUIDANCE

END = 256
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
"""Token id -> its letter in the notation of byte-level tokenizers."""
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TAG = {"structures": [{"begin": "<f>", "schema": {"type": "integer", "maximum": 99, "minimum": 0}, "end": "</f>"}], "triggers": ["<f>"]}


def token(letter: str) -> int:
    return ALPHABET.index(letter)


def is_person(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"name", "age"} and isinstance(value["name"], str) and isinstance(value["age"], int) and len(value["name"]) <= 6


FORMS: dict[str, tuple[dict[str, Any], Callable[[str], bool]]] = {
    "json": ({"json": PERSON, "disable_any_whitespace": True}, is_person),
    "json_object": ({"json_object": True, "disable_any_whitespace": True}, lambda text: isinstance(json.loads(text), dict)),
    "regex": ({"regex": r"[a-c]{2,5}-[0-9]+x"}, lambda text: re.fullmatch(r"[a-c]{2,5}-[0-9]+x", text) is not None),
    "choice": ({"choice": ["yes", "no", "no way"]}, lambda text: text in ("yes", "no", "no way")),
    "grammar": (
        {"grammar": 'root ::= "(" ("x" | root){1,2} ")"'},
        lambda text: text.count("(") == text.count(")") > 0 and set(text) <= set("(x)"),
    ),
}
BAD_FORMS: list[dict[str, Any]] = [
    {"json": {"type": "foo"}},
    {"json": {"type": "array", "uniqueItems": True}},
    {"regex": "[a"},
    {"grammar": 'root = "a"'},
    {"structural_tag": {"structures": [], "triggers": ["<"]}},
]


@pytest.fixture(scope="module")
def tiny(tiny_model: Path, shared_model: Any) -> Any:
    return shared_model(str(tiny_model), dtype="float32")


@pytest.fixture(scope="module")
def llm(tiny: Any) -> LLM:
    engine: LLM = tiny.engine(max_num_seqs=16)
    return engine


def params(form: dict[str, Any], **more: Any) -> SamplingParams:
    defaults = {"max_tokens": 120, "temperature": 1.3, "seed": 1, "structured_outputs": StructuredOutputsParams(**form)}
    return SamplingParams(**{**defaults, **more})


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
@pytest.mark.parametrize("name", FORMS)
def test_outputs_have_the_form(tiny: Any, name: str, backend: str) -> None:
    form, holds = FORMS[name]
    if (name, backend) == ("json", "xgrammar"):
        properties: dict[str, Any] = {**FORMS["json"][0]["json"]["properties"], "name": {"type": "string", "pattern": "^[a-z]{0,6}$"}}
        form = {**form, "json": {**PERSON, "properties": properties}}
    llm = tiny.engine(grammar=backend, max_num_seqs=16)
    brief = {token("}"): 4.0, token('"'): 4.0}
    outputs = llm.generate(["hello"] * 8, [params(form, seed=seed, logit_bias=brief) for seed in range(8)], use_tqdm=False)
    completions = [output.outputs[0] for output in outputs]
    ended = [completion for completion in completions if completion.finish_reason == "stop"]
    assert len(ended) >= 4
    assert all(holds(completion.text) for completion in ended)
    assert all(completion.token_ids[-1] == END for completion in ended)
    assert name == "json_object" or len({completion.text for completion in ended}) > 1


def test_a_structural_tag_rules_only_what_follows_its_trigger(llm: LLM) -> None:
    bias = {token(letter): 9.0 for letter in "<f>"}
    wanted = [params({"structural_tag": TAG}, seed=seed, max_tokens=60, logit_bias=bias) for seed in range(8)]
    texts = [output.outputs[0].text for output in llm.generate(["x"] * 8, wanted, use_tqdm=False)]
    after = [follows for text in texts for follows in text.split("<f>")[1:]]
    assert after
    assert all(re.match(r"\d{1,2}(</f>|(</?f?)?$)|$", follows) for follows in after)


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_names_of_special_tokens_are_text_like_any_other(tiny: Any, backend: str) -> None:
    llm = tiny.engine(grammar=backend)
    (output,) = llm.generate("hi", params({"choice": ["<end><end>"]}), use_tqdm=False)
    assert output.outputs[0].text == "<end><end>"
    assert output.outputs[0].token_ids == [*(token(letter) for letter in "<end><end>"), END]


def test_greedy_and_bias_cannot_leave_the_grammar(llm: LLM) -> None:
    """Known bugs 79 and 83: ends and blanks with all the weight there is."""
    for token_id in (END, token("Ċ"), token("z")):
        form, holds = FORMS["json"]
        (output,) = llm.generate("hi", params(form, temperature=0.0, logit_bias={token_id: 100.0}), use_tqdm=False)
        assert output.outputs[0].finish_reason == "length" or holds(output.outputs[0].text)


@pytest.mark.parametrize("stop_token_ids", [[], [token("q")], [token("b")]])
def test_every_end_id_is_gated(llm: LLM, stop_token_ids: list[int]) -> None:
    """Known bug 79."""
    bias = {END: 90.0, **dict.fromkeys(stop_token_ids, 100.0)}
    (output,) = llm.generate(
        "hi", params({"regex": "ac{3}"}, temperature=0.0, logit_bias=bias, stop_token_ids=stop_token_ids, ignore_eos=False), use_tqdm=False
    )
    completion = output.outputs[0]
    assert completion.finish_reason == "stop"
    assert completion.token_ids == [token("a"), *[token("c")] * 3, stop_token_ids[0] if stop_token_ids else END]


def test_a_complete_output_ends_also_with_ignore_eos(llm: LLM) -> None:
    (output,) = llm.generate("hi", params({"choice": ["no", "yes"]}, ignore_eos=True), use_tqdm=False)
    assert output.outputs[0].text in ("no", "yes")
    assert output.outputs[0].finish_reason == "stop"


@pytest.mark.parametrize("form", BAD_FORMS)
def test_a_bad_grammar_is_that_requests_error_alone(llm: LLM, form: dict[str, Any], assert_idle: Callable[[LLM], None]) -> None:
    """Known bug 77."""
    plain = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    expected = llm.generate("plain", plain, use_tqdm=False)[0].outputs[0].token_ids
    good, holds = FORMS["regex"]
    outputs = llm.generate(["plain", "bad", "good"], [plain, params(form), params(good)], use_tqdm=False)
    assert outputs[0].outputs[0].token_ids == expected
    assert outputs[1].outputs[0].finish_reason == "error"
    assert outputs[1].error is not None
    assert outputs[1].error.startswith("structured_outputs: ")
    assert outputs[1].outputs[0].token_ids == []
    assert holds(outputs[2].outputs[0].text)
    assert_idle(llm)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({}, "exactly one of"),
        ({"regex": "a", "choice": ["b"]}, "regex and choice"),
        ({"choice": []}, "choice is empty"),
        ({"json": "{"}, "json is not JSON"),
        ({"json": [1]}, "json must be"),
        ({"regex": "\ud800"}, "not valid text"),
    ],
)
def test_what_has_no_form_is_refused_when_it_is_made(form: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        StructuredOutputsParams(**form)


def test_async_engine_serves_others_while_bad_grammars_fail(tiny_model: Path) -> None:
    """Known bug 77: four bad ones beside a plain stream, then a good one."""

    async def run() -> None:
        async with AsyncLLM(str(tiny_model), dtype="float32") as engine:

            async def last(prompt: str, wanted: SamplingParams) -> Any:
                return [output async for output in engine.generate(prompt, wanted)][-1]

            plain = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
            alone = await last("plain", plain)
            stream, *bad = await asyncio.gather(last("plain", plain), *(last("bad", params(form)) for form in BAD_FORMS[:4]))
            assert stream.outputs == alone.outputs
            assert [output.outputs[0].finish_reason for output in bad] == ["error"] * 4
            good, holds = FORMS["json"]
            text = (await last("good", params(good))).outputs[0].text
            assert holds(text)
            assert engine.is_alive

    asyncio.run(asyncio.wait_for(run(), timeout=60))


class SlowBackend(LlguidanceBackend):
    """Compiles `slow` only when it is let."""

    gate = threading.Event()

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        if "slow" in spec.text:
            self.gate.wait(timeout=30)
        return super().compile(spec)


def test_a_grammar_that_takes_too_long_fails_and_holds_up_nobody(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known bug 77."""
    monkeypatch.setattr("slotwise_plugins.grammar.llguidance_backend.LlguidanceBackend", SlowBackend)
    SlowBackend.gate.clear()
    llm = tiny.engine(grammar={"max_compile_seconds": 0.3})
    began = time.monotonic()
    outputs = llm.generate(
        ["a", "b", "c"], [params({"regex": "slow"}), params({"regex": "fast"}), SamplingParams(max_tokens=4)], use_tqdm=False
    )
    assert time.monotonic() - began < 20
    assert outputs[0].error == "structured_outputs: the grammar takes longer than 0.3 s to compile; simplify it"
    assert outputs[1].outputs[0].text == "fast"
    assert len(outputs[2].outputs[0].token_ids) == 4
    SlowBackend.gate.set()
    llm.shutdown()


class FailingMatcher(GrammarMatcher):
    """Fails on the third mask."""

    def __init__(self) -> None:
        self._num_masks = 0

    def fill_mask(self, mask: torch.Tensor) -> None:
        self._num_masks += 1
        if self._num_masks == 3:
            raise GrammarError("it became too costly")
        mask.fill_(-1)

    def accept(self, token_id: int) -> bool:
        return True

    def rollback(self, num_tokens: int) -> None:
        return None

    @property
    def is_ended(self) -> bool:
        return False


class FailingGrammar(CompiledGrammar, GrammarBackend):
    """Both."""

    capabilities = LLGUIDANCE

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        return self

    def matcher(self) -> GrammarMatcher:
        return FailingMatcher()


def test_a_matcher_that_fails_ends_its_request_alone(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotwise_plugins.grammar.llguidance_backend.LlguidanceBackend", FailingGrammar)
    llm = tiny.engine()
    plain = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    bad, good = llm.generate(["a", "b"], [params({"regex": "x"}, ignore_eos=True), plain], use_tqdm=False)
    assert bad.error == "structured_outputs: it became too costly"
    assert len(bad.outputs[0].token_ids) == 2
    assert len(good.outputs[0].token_ids) == 8


def test_n_completions_each_have_the_form(llm: LLM) -> None:
    form, holds = FORMS["regex"]
    (output,) = llm.generate("hi", params(form, n=5), use_tqdm=False)
    assert all(holds(completion.text) for completion in output.outputs)
    assert len({completion.text for completion in output.outputs}) > 1


def test_min_tokens_defers_the_end_within_the_grammar(llm: LLM) -> None:
    (output,) = llm.generate(
        "hi", params({"regex": "a+"}, temperature=0.0, logit_bias={END: 100.0}, min_tokens=7, ignore_eos=True), use_tqdm=False
    )
    assert output.outputs[0].text == "a" * 7


def test_min_tokens_beyond_what_the_grammar_allows_does_not_hang(llm: LLM) -> None:
    (output,) = llm.generate("hi", params({"choice": ["ab"]}, min_tokens=9), use_tqdm=False)
    assert output.outputs[0].text == "ab"
    assert output.outputs[0].finish_reason == "stop"


def test_stop_strings_cut_within_the_grammar(llm: LLM) -> None:
    (output,) = llm.generate("hi", params({"regex": "ab-cd"}, stop=["-"]), use_tqdm=False)
    assert output.outputs[0].text == "ab"
    assert output.outputs[0].stop_reason == "-"


SETTINGS: dict[str, dict[str, Any]] = {
    "pipelined": {"scheduler": {"async_scheduling": True}},
    "ngram": {"proposer": "ngram"},
    "draft_model": {"proposer": {"use": "draft_model", "num_drafts": 3}},
    "preempting": {"block_size": 4, "max_num_seqs": 8, "kv_cache": {"num_blocks": 40}},
    "pipelined_preempting": {"scheduler": {"async_scheduling": True}, "block_size": 4, "max_num_seqs": 8, "kv_cache": {"num_blocks": 40}},
    "ngram_preempting": {"proposer": "ngram", "block_size": 4, "max_num_seqs": 8, "kv_cache": {"num_blocks": 40}},
    "chunked": {"max_num_batched_tokens": 8, "max_num_seqs": 8},
    "no_prefix_cache": {"enable_prefix_caching": False},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_way_of_running_gives_the_same_tokens(tiny: Any, tiny_model: Path, llm: LLM, setting: str) -> None:
    settings = SETTINGS[setting]
    if setting == "draft_model":
        settings = {"proposer": {**settings["proposer"], "options": {"model": str(tiny_model)}}}
    other = tiny.engine(**settings)
    prompts = [f"{name} {number} abcabc abcabc" for number, name in enumerate(FORMS)] + ["free abcabc"]
    for temperature in (0.0, 1.2):
        wanted = [params(form, temperature=temperature, max_tokens=40, seed=5) for form, _ in FORMS.values()]
        wanted.append(SamplingParams(temperature=temperature, max_tokens=40, seed=5, ignore_eos=True))
        expected = [output.outputs[0].token_ids for output in llm.generate(prompts, wanted, use_tqdm=False)]
        assert [output.outputs[0].token_ids for output in other.generate(prompts, wanted, use_tqdm=False)] == expected
    if "proposer" in settings:
        assert other.engine.core.stats().speculation.num_draft_tokens > 0


def test_masks_are_made_while_the_forward_runs(tiny: Any) -> None:
    """The forward waits for the mask of its own step, which would never come if it were made afterwards."""
    llm = tiny.engine()
    core = llm.engine.core
    made = threading.Event()
    fill = core.grammars._masks

    def noting(wanted: Any) -> Any:
        masks = fill(wanted)
        made.set()
        return masks

    core.grammars._masks = noting
    model = core.executor.model
    forward, waited = model.forward, []

    def waiting(batch: ForwardBatch) -> ModelOutput:
        waited.append(made.wait(timeout=10))
        made.clear()
        output: ModelOutput = forward(batch)
        return output

    model.forward = waiting
    try:
        (output,) = llm.generate("hi", params({"choice": ["yes"]}), use_tqdm=False)
    finally:
        model.forward = forward
    assert output.outputs[0].text == "yes"
    assert waited
    assert all(waited)


def test_a_grammar_is_compiled_once_for_equal_requests(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[GrammarSpec] = []
    compile_one = LlguidanceBackend.compile

    def counting(self: LlguidanceBackend, spec: GrammarSpec) -> CompiledGrammar:
        calls.append(spec)
        return compile_one(self, spec)

    monkeypatch.setattr(LlguidanceBackend, "compile", counting)
    llm = tiny.engine()
    for _ in range(2):
        llm.generate(["a", "b", "c"], params({"regex": "once"}), use_tqdm=False)
    assert len(calls) == 1
    assert GrammarCompiler.poll_seconds < 0.1


def test_without_a_grammar_engine_the_request_is_refused(tiny: Any) -> None:
    llm = tiny.engine(grammar="none")
    with pytest.raises(InvalidRequestError, match=r"needs a grammar engine \(grammar\.use\)"):
        llm.generate("hi", params({"regex": "a"}), use_tqdm=False)
