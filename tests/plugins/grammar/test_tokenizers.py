"""What tokens do to grammars: ids of no meaning, special ones, several ways to spell one text, tokenizers that cannot be read."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast

from slotwise.interfaces.grammar import CHOICE, EBNF, JSON_SCHEMA, REGEX, STRUCTURAL_TAG, GrammarError
from slotwise.model_source import find_model

FORCED: list[tuple[str, Any]] = [
    (CHOICE, ["true12ab"]),
    (CHOICE, ["<end>", "<pad>12"]),
    (REGEX, "true|<tool>ab"),
    (EBNF, 'root ::= "ab" root? "12"'),
    (JSON_SCHEMA, {"type": "object", "properties": {"ab": {"const": "true"}}, "required": ["ab"], "additionalProperties": False}),
    (STRUCTURAL_TAG, {"structures": [{"begin": "<tool>", "schema": {"type": "boolean"}, "end": "</tool>"}], "triggers": ["<tool>"]}),
]


@pytest.mark.parametrize(("kind", "text"), FORCED)
def test_every_spelling_of_a_text_is_allowed_and_accepted(any_engine: Any, kind: str, text: Any) -> None:
    """All ids at each place of a walk: allowed and accepted are the same, but for other ids of the same bytes."""
    chance = random.Random(3)
    matcher = any_engine.compile(kind, text).matcher()
    for _ in range(16):
        if matcher.is_ended:
            break
        allowed = any_engine.allowed(matcher)
        accepted = set()
        for token_id in range(any_engine.vocab_size):
            if matcher.accept(token_id):
                accepted.add(token_id)
                matcher.rollback(1)
        assert allowed <= accepted
        assert {any_engine.bytes_of(token_id) for token_id in allowed} == {any_engine.bytes_of(token_id) for token_id in accepted}
        assert any_engine.allowed(matcher) == allowed
        assert matcher.accept(chance.choice(sorted(allowed)))


def test_the_text_of_a_special_token_is_written_out_in_others(any_engine: Any) -> None:
    grammar = any_engine.compile(CHOICE, ["<end>"])
    matcher = grammar.matcher()
    for letter in "<end>":
        (token_id,) = any_engine.ids(letter)
        assert matcher.accept(token_id)
    assert matcher.accept(any_engine.end)
    for name in ("<end>", "<pad>", "<tool>"):
        assert not grammar.matcher().accept(any_engine.tokenizer.convert_tokens_to_ids(name))


def test_added_tokens_are_never_allowed(any_engine: Any) -> None:
    """Known bug 79."""
    added = {any_engine.tokenizer.convert_tokens_to_ids(name) for name in ("<pad>", "<tool>")}
    for kind, text in ((REGEX, r"(.|\n)*"), FORCED[-1]):
        assert not any_engine.allowed(any_engine.compile(kind, text).matcher()) & added


@pytest.mark.parametrize("num_padded", [-3, -1, 0, 1, 64])
def test_models_may_have_fewer_or_more_ids_than_tokenizers(make_engine: Callable[..., Any], num_padded: int) -> None:
    """Ids beyond the model's are never allowed, whether or not the tokenizer has them. The mask is written up to its last word."""
    engine = make_engine(num_padded=num_padded, end=0 if num_padded < 0 else None)
    matcher = engine.compile(REGEX, r"(.|\n)*").matcher()
    allowed = engine.allowed(matcher)
    assert engine.end in allowed
    assert max(allowed) < min(engine.vocab_size, len(engine.tokenizer))
    assert not matcher.accept(engine.vocab_size)
    assert matcher.accept(engine.ids("a")[0])


def test_both_byte_fallback_and_pieces_spell_a_text(make_engine: Callable[..., Any]) -> None:
    engine = make_engine("byte_fallback")
    tokens = engine.tokenizer
    grammar = engine.compile(CHOICE, ["é b"])
    for pieces in (["é", "▁", "b"], ["<0xC3>", "<0xA9>", "▁", "b"], ["é", "<0x20>", "<0x62>"]):
        matcher = grammar.matcher()
        assert all(matcher.accept(tokens.convert_tokens_to_ids(piece)) for piece in pieces), pieces
        assert matcher.accept(engine.end)


class SlowTokenizer(PreTrainedTokenizer):  # type: ignore[misc]
    """Of no library."""

    @property
    def vocab_size(self) -> int:
        return 3

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0, "b": 1, "<end>": 2}

    def _convert_token_to_id(self, token: str) -> int:
        return self.get_vocab().get(token, 0)

    def _convert_id_to_token(self, index: int) -> str:
        return "ab"[index % 2]


def test_a_tokenizer_that_cannot_be_read_is_refused_in_words(make_engine: Callable[..., Any]) -> None:
    with pytest.raises(GrammarError, match="tokenizer"):
        make_engine(SlowTokenizer(eos_token="<end>"))


def test_a_tokenizer_of_words_serves_the_texts_that_it_can_spell_or_is_refused(make_engine: Callable[..., Any], backend_name: str) -> None:
    words = Tokenizer(models.WordLevel(vocab={"a": 0, "b": 1, "ab": 2, "<unk>": 3}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", unk_token="<unk>")
    if backend_name == "llguidance":
        with pytest.raises(GrammarError, match="cannot read this model's tokenizer: can't determine decoder type"):
            make_engine(tokenizer)
        return
    engine = make_engine(tokenizer)
    matcher = engine.compile(REGEX, "ab|b").matcher()
    assert engine.allowed(matcher) == {0, 1, 2}
    with pytest.raises(GrammarError, match="no output"):
        engine.compile(REGEX, "c")


def test_a_real_tokenizer_writes_json(make_engine: Callable[..., Any]) -> None:
    """SmolLM2: 49152 ids."""
    engine = make_engine(AutoTokenizer.from_pretrained(find_model("smollm2").tokenizer_path), num_padded=0)
    grammar = engine.compile(JSON_SCHEMA, {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
    assert engine.takes(grammar, '{"name": "Grüße, 世界 😀"}')
    assert not engine.takes(grammar, '{"nom": "x"}')
    allowed = engine.allowed(grammar.matcher())
    assert {engine.tokenizer.decode([token_id]).lstrip()[:1] for token_id in allowed} == {"{"}
    assert not allowed & set(engine.tokenizer.all_special_ids)
