"""Speculative decoding changes how many steps there are, never which tokens come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig, MistralConfig, PreTrainedModel

from slotwise import LLM, SamplingParams
from slotwise.errors import ConfigError
from slotwise.interfaces.attention import AttentionLayer
from slotwise.interfaces.proposer import Drafts, Proposer, ProposerCapabilities, ProposeRequest, ProposerSetup, TokenSpan
from slotwise_plugins.proposers import ngram
from slotwise_plugins.proposers.options import NGRAM
from slotwise_plugins.registrations import proposer as registrations

VOCAB = 64
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SHAPE, num_hidden_layers=2),
    "mistral": lambda: MistralConfig(**SHAPE, num_hidden_layers=2, sliding_window=12),
    "gemma3": lambda: Gemma3TextConfig(
        **SHAPE, num_hidden_layers=4, head_dim=16, sliding_window=12, query_pre_attn_scalar=16, sliding_window_pattern=2
    ),
}
PATTERNS = ([5, 9, 7], [1, 2, 3, 4], [11], [20, 21, 20, 22, 20])
PROMPTS = [(pattern * 20)[:length] for pattern, length in zip(PATTERNS * 2, (1, 4, 9, 13, 30, 41, 60, 17), strict=True)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SETTINGS: dict[str, dict[str, Any]] = {
    "roomy": {},
    "chunked": {"max_num_batched_tokens": 8, "max_num_seqs": 5, "block_size": 3},
    "preempting": {"block_size": 4, "kv_cache": {"num_blocks": 60}},
    "phases": {"attention": {"use": "torch_sdpa", "per_phase": {"decode": "reference"}}, "max_num_batched_tokens": 16, "max_num_seqs": 8},
    "cpu": {"attention": "cpu"},
}


class Families:
    """Engines of tiny random models, each saved once."""

    def __init__(self, root: Path, save: Callable[..., PreTrainedModel], shared_model: Callable[..., Any]) -> None:
        self._root, self._save, self._shared_model = root, save, shared_model
        self._models: dict[str, Any] = {}

    def path(self, family: str, seed: int = 0) -> Path:
        path = self._root / f"{family}-{seed}"
        if not path.exists():
            self._save(path, CONFIGS[family](), seed)
        return path

    def engine(self, family: str, **settings: Any) -> LLM:
        if family not in self._models:
            self._models[family] = self._shared_model(str(self.path(family)), dtype="float32", max_model_len=128)
        engine: LLM = self._models[family].engine(**settings)
        return engine


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory, save_tiny_model: Callable[..., PreTrainedModel], shared_model: Any) -> Families:
    return Families(tmp_path_factory.mktemp("families"), save_tiny_model, shared_model)


class GuessProposer(Proposer):
    """Knows the right continuation of each prompt, and gives it with a mistake now and then."""

    capabilities = NGRAM
    answers: dict[int, list[int]] = {}
    """First token and length of a prompt -> what the plain engine generated."""
    asked = 0

    def propose(self, request: ProposeRequest) -> Drafts:
        drafts = []
        for index, row in enumerate(request.rows):
            known = next((answer for answer in self.answers.values() if list(row.token_ids) == answer[: len(row.token_ids)]), None)
            self.asked += 1
            guess = [] if known is None else known[len(row.token_ids) :][: max(0, (self.asked + index) % 5)]
            if guess and self.asked % 3 == 0:
                guess[-1] = (guess[-1] + 1) % VOCAB
            drafts.append(guess)
        return Drafts(token_ids=drafts)


def replace_ngram(monkeypatch: pytest.MonkeyPatch, implementation: type[Proposer]) -> None:
    """Let the name `ngram` stand for another class, as if it were installed under it."""
    monkeypatch.setattr(ngram, "NgramProposer", implementation)
    monkeypatch.setattr(registrations, "NGRAM", implementation.capabilities)


def run(llm: LLM, params: Any) -> list[Any]:
    outputs = [output.outputs[0] for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    return [(output.token_ids, output.finish_reason, output.stop_reason) for output in outputs]


def accepted(llm: LLM) -> int:
    return llm.engine.core.stats().speculation.num_accepted_tokens


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("family", CONFIGS)
def test_greedy_tokens_equal_the_plain_engines(
    family: str, settings: str, families: Families, assert_idle: Callable[[LLM], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(families.engine(family), GREEDY)
    GuessProposer.answers = {index: prompt + ids for index, (prompt, (ids, *_)) in enumerate(zip(PROMPTS, expected, strict=True))}
    found_any = 0
    for implementation in (ngram.NgramProposer, GuessProposer):
        with monkeypatch.context() as patch:
            replace_ngram(patch, implementation)
            llm = families.engine(family, proposer="ngram", **SETTINGS[settings])
        for _ in range(2):  # the second time with a warm cache
            assert run(llm, GREEDY) == expected
        assert_idle(llm)
        stats = llm.engine.core.stats().speculation
        assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens or implementation is not GuessProposer
        assert stats.accepted_per_position == sorted(stats.accepted_per_position, reverse=True)
        found_any += stats.num_draft_tokens
    assert found_any


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.9, "seed": 3},
        {"temperature": 1.0, "seed": 4, "top_k": 7, "top_p": 0.9, "min_p": 0.02},
        {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
        {"temperature": 0.8, "seed": 1, "repetition_penalty": 1.3, "logit_bias": {5: 2.0, 9: -100}},
        {"temperature": 0.0, "allowed_token_ids": [3, 5, 7, 9, 11]},
        {"temperature": 0.0, "min_tokens": 9, "stop_token_ids": list(range(0, VOCAB, 2)), "ignore_eos": False},
        {"temperature": 1.0, "seed": 8, "stop_token_ids": [5, 6, 7, 8], "ignore_eos": False},
    ],
    ids="-".join,
)
def test_every_parameter_acts_as_without_drafts(
    params: dict[str, Any], families: Families, monkeypatch: pytest.MonkeyPatch, assert_idle: Callable[[LLM], None]
) -> None:
    """Tokens and reasons are equal, logprobs too but for the rounding of batches of other sizes."""
    sampling = SamplingParams(**{"max_tokens": 24, "ignore_eos": True, "logprobs": 2, **params})
    plain = families.engine("llama")
    expected = [output.outputs[0] for output in plain.generate(PROMPTS, sampling, use_tqdm=False)]
    GuessProposer.answers = {index: prompt + output.token_ids for index, (prompt, output) in enumerate(zip(PROMPTS, expected, strict=True))}
    replace_ngram(monkeypatch, GuessProposer)
    llm = families.engine("llama", proposer="ngram", max_num_batched_tokens=24, max_num_seqs=8)
    found = [output.outputs[0] for output in llm.generate(PROMPTS, sampling, use_tqdm=False)]
    for one, other in zip(found, expected, strict=True):
        assert (one.token_ids, one.finish_reason, one.stop_reason) == (other.token_ids, other.finish_reason, other.stop_reason)
        assert one.logprobs is not None
        assert other.logprobs is not None
        assert len(one.logprobs) == len(one.token_ids)
        for position, expected_position in zip(one.logprobs, other.logprobs, strict=True):
            assert list(position) == list(expected_position)
            for token_id, entry in position.items():
                assert entry.logprob == pytest.approx(expected_position[token_id].logprob, abs=1e-3)
                assert entry.rank == expected_position[token_id].rank
    assert accepted(llm) > 10
    assert_idle(llm)


def test_a_step_with_accepted_drafts_gives_several_tokens(families: Families, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = families.engine("llama").generate(PROMPTS[3], GREEDY, use_tqdm=False)[0].outputs[0].token_ids

    class AlwaysRight(Proposer):
        capabilities = NGRAM

        def propose(self, request: ProposeRequest) -> Drafts:
            return Drafts(token_ids=[(PROMPTS[3] + expected)[len(row.token_ids) :][: row.num_drafts] for row in request.rows])

    replace_ngram(monkeypatch, AlwaysRight)
    llm = families.engine("llama", proposer={"use": "ngram", "num_drafts": 5})
    llm.engine.add_request(PROMPTS[3], GREEDY)
    steps = [llm.engine.step()[0].outputs[0].token_ids for _ in range(5)]
    assert [len(token_ids) for token_ids in steps] == [1, 7, 13, 19, 24]
    assert steps[-1] == expected
    stats = llm.engine.core.stats().speculation
    assert stats.acceptance_rate == 1.0
    assert stats.num_draft_tokens == 5 + 5 + 5 + 4
    assert stats.accepted_per_position == [4, 4, 4, 4, 3]


def test_drafts_never_reach_past_max_tokens_or_the_context(families: Families, assert_idle: Callable[[LLM], None]) -> None:
    prompt = [5] * 120
    for max_tokens in (1, 2, 3, 8, None):
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        expected = families.engine("llama").generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids
        llm = families.engine("llama", proposer={"use": "ngram", "num_drafts": 6, "options": {"min_match": 1}})
        assert llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids == expected
        assert_idle(llm)


@pytest.mark.parametrize("draft_seed", [0, 1], ids=["itself", "another"])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_draft_model_changes_nothing_either(
    family: str, settings: str, draft_seed: int, families: Families, assert_idle: Callable[[LLM], None]
) -> None:
    expected = run(families.engine(family), GREEDY)
    seeded = SamplingParams(temperature=0.9, seed=5, max_tokens=16, ignore_eos=True)
    expected_seeded = run(families.engine(family), seeded)
    options = {"model": str(families.path(family, draft_seed))}
    llm = families.engine(family, proposer={"use": "draft_model", "options": options}, **SETTINGS[settings])
    for _ in range(2):
        assert run(llm, GREEDY) == expected
    stats = llm.engine.core.stats().speculation
    assert stats.num_draft_tokens > 100
    if draft_seed == 0:  # a model drafts for itself: whatever is refused would be a fault of the draft's cache
        assert stats.acceptance_rate > 0.99
    assert run(llm, seeded) == expected_seeded
    assert_idle(llm)


def test_a_draft_model_of_another_kind_of_layers_gets_its_own_blocks(families: Families, assert_idle: Callable[[LLM], None]) -> None:
    expected = run(families.engine("mistral"), GREEDY)
    options = {"model": str(families.path("llama"))}
    llm = families.engine("mistral", proposer={"use": "draft_model", "options": options}, **SETTINGS["chunked"])
    assert run(llm, GREEDY) == expected
    assert_idle(llm)


def test_sampled_drafts_of_unseeded_requests_keep_the_distribution(families: Families) -> None:
    """First two tokens of 3,000 runs with drafts drawn from another model, against the plain engine: chi-square of two samples."""
    prompt, num = PROMPTS[3], 3000
    params = SamplingParams(temperature=0.7, max_tokens=3, ignore_eos=True, top_k=6)
    options = {"model": str(families.path("llama", 1))}
    settings: dict[str, Any] = {"max_num_seqs": 64}
    engines = (
        families.engine("llama", **settings),
        families.engine("llama", seed=7, proposer={"use": "draft_model", "options": options}, **settings),
    )
    counts = torch.zeros(2, VOCAB, dtype=torch.float64)
    for index, llm in enumerate(engines):
        for output in llm.generate([prompt] * num, params, use_tqdm=False):
            counts[index, output.outputs[0].token_ids[1]] += 1
    stats = engines[1].engine.core.stats().speculation
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens
    kept = counts[:, counts.sum(0) >= 20]
    expected = kept.sum(0) / 2
    statistic = ((kept - expected) ** 2 / expected).sum().item()
    degrees = kept.shape[1] - 1
    assert statistic < degrees + 5 * (2 * degrees) ** 0.5 + 5


EAGLE = ProposerCapabilities(needs_hidden_states=True)
HEADS, DIM = 2, 16


class TinyEagle(Proposer):
    """An EAGLE-style head: one attention layer over (hidden state of a token, embedding of the next token); random weights."""

    capabilities = EAGLE
    seen: list[tuple[int, int]] = []

    def __init__(self, setup: ProposerSetup) -> None:
        super().__init__(setup)
        generator = torch.Generator().manual_seed(0)
        hidden = SHAPE["hidden_size"]
        self._mix = torch.randn(2 * hidden, 3 * HEADS * DIM, generator=generator) * 0.1
        self._out = torch.randn(HEADS * DIM, hidden, generator=generator)

    @property
    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        return (AttentionLayer(index=0, name="eagle.0", num_heads=HEADS, num_kv_heads=HEADS, head_dim=DIM, scale=0.25),)

    def propose(self, request: ProposeRequest) -> Drafts:
        assert request.hidden_states is not None
        drafts: list[list[int]] = [[] for _ in request.rows]
        hidden: Sequence[torch.Tensor] = request.hidden_states
        spans = []
        for index, row in enumerate(request.rows):
            next_ids = row.token_ids[row.first_new + 1 : row.first_new + row.num_new].tolist()
            self.seen.append((len(hidden[index]), row.num_new))
            if next_ids:
                spans.append(TokenSpan(row=index, first_position=row.first_new, token_ids=next_ids))
        states = [hidden[span.row][: len(span.token_ids)] for span in spans]
        while spans:
            batch = request.passes.begin(spans)
            mixed = torch.cat([torch.cat(states), self.setup.model.embed_tokens(batch.input_ids)], dim=-1) @ self._mix
            query, key, value = mixed.view(-1, 3, HEADS, DIM).unbind(1)
            new = batch.attention.attend(0, query, key, value).flatten(1) @ self._out + torch.cat(states)
            last = new[batch.logits_indices]
            ids = self.setup.model.compute_logits(last).argmax(dim=-1).tolist()
            going_on = []
            for place, span in enumerate(spans):
                row = request.rows[span.row]
                if len(drafts[span.row]) < row.num_drafts:
                    drafts[span.row].append(ids[place])
                    if len(drafts[span.row]) < row.num_drafts:
                        position = span.first_position + len(span.token_ids)
                        going_on.append((TokenSpan(row=span.row, first_position=position, token_ids=[ids[place]]), last[place : place + 1]))
            spans, states = [span for span, _ in going_on], [state for _, state in going_on]
        return Drafts(token_ids=drafts)


@pytest.mark.parametrize("settings", ["roomy", "chunked", "preempting"])
def test_an_eagle_style_head_gets_hidden_states_and_layers_of_its_own(
    settings: str, families: Families, monkeypatch: pytest.MonkeyPatch, assert_idle: Callable[[LLM], None]
) -> None:
    expected = run(families.engine("llama"), GREEDY)
    replace_ngram(monkeypatch, TinyEagle)
    TinyEagle.seen = []
    llm = families.engine("llama", proposer="ngram", **SETTINGS[settings])
    for _ in range(2):
        assert run(llm, GREEDY) == expected
    assert_idle(llm)
    assert llm.engine.core.stats().speculation.num_draft_tokens > 100
    assert {num_new - num_hidden for num_hidden, num_new in TinyEagle.seen} <= {0, 1}
    assert any(num_hidden > 1 for num_hidden, _ in TinyEagle.seen)


def test_n_completions_and_logprobs_of_the_prompt_go_with_drafts(families: Families, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(n=3, temperature=0.9, seed=1, max_tokens=12, ignore_eos=True, prompt_logprobs=1)
    expected = families.engine("llama").generate(PROMPTS[4], params, use_tqdm=False)[0]
    llm = families.engine("llama", proposer={"use": "ngram", "options": {"min_match": 1}}, max_num_batched_tokens=8, max_num_seqs=4)
    found = llm.generate(PROMPTS[4], params, use_tqdm=False)[0]
    assert [output.token_ids for output in found.outputs] == [output.token_ids for output in expected.outputs]
    assert found.prompt_logprobs is not None
    assert expected.prompt_logprobs is not None
    assert [None if each is None else list(each) for each in found.prompt_logprobs] == [
        None if each is None else list(each) for each in expected.prompt_logprobs
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"proposer": "ngram", "scheduler": {"async_scheduling": True}}, "async_scheduling"),
        ({"proposer": "draft_model"}, "model"),
        ({"proposer": {"use": "draft_model", "options": {"model": "LLAMA"}}, "kv_cache": {"dtype": "int8"}}, "int8"),
        ({"proposer": {"use": "draft_model", "options": {"model": "LLAMA"}}, "kv_cache": {"sanitize": True}}, "sanitize"),
        ({"proposer": {"use": "ngram", "options": {"min_match": 5, "max_match": 2}}}, "min_match"),
    ],
)
def test_what_does_not_go_together_is_refused_before_weights_are_read(settings: dict[str, Any], message: str, families: Families) -> None:
    if "options" in settings["proposer"] and "model" in settings["proposer"]["options"]:
        settings["proposer"]["options"]["model"] = str(families.path("llama"))
    with pytest.raises(ConfigError, match=message):
        families.engine("llama", **settings)


def test_a_draft_model_of_another_vocabulary_is_refused(
    families: Families, tmp_path: Path, save_tiny_model: Callable[..., PreTrainedModel]
) -> None:
    save_tiny_model(tmp_path, LlamaConfig(**{**SHAPE, "vocab_size": 40}, num_hidden_layers=1))
    with pytest.raises(ConfigError, match="vocabulary of 40 ids, the model one of 64"):
        families.engine("llama", proposer={"use": "draft_model", "options": {"model": str(tmp_path)}})
