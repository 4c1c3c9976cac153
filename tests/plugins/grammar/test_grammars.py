"""Both grammar components: what they accept, what they refuse, and how they keep their place."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from slotwise.interfaces.grammar import CHOICE, EBNF, GRAMMAR_KINDS, JSON_OBJECT, JSON_SCHEMA, REGEX, STRUCTURAL_TAG, GrammarError

PERSON = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"]}
TAGS = {
    "structures": [
        {"begin": "<f=a>", "schema": PERSON, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "integer"}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}
ACCEPTED: list[tuple[str, Any, list[str], list[str]]] = [
    (JSON_SCHEMA, PERSON, ['{"a":1,"b":"x"}', '{ "a" : 12 ,\n"b": "é\\n"}'], ['{"a":1}', '{"a":"1","b":"x"}', '{"a":1,"b":"x"', "[]", ""]),
    (JSON_SCHEMA, {"type": "integer", "maximum": 20_000_000_000}, ["20000000000", "-3"], ["20000000001", "1.5"]),
    (JSON_SCHEMA, {"type": "array", "items": {"enum": ["x", 1, None]}, "maxItems": 2}, ['["x",1]', "[null]", "[]"], ["[1,1,1]", '["y"]']),
    (JSON_SCHEMA, {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}, ["[]", "[[],[[]]]"], ["[1]"]),
    (JSON_OBJECT, "", ["{}", '{"x": [1, {"y": null}]}'], ["[]", "1", "{"]),
    (REGEX, r"a+(b|12)?", ["a", "aaab", "a12"], ["", "b", "ab12", "a1"]),
    (REGEX, r"\d{2}-[a-f]+é", ["12-abé"], ["1-aé", "12-gé", "12-ab"]),
    (EBNF, 'root ::= item ("," item)*\nitem ::= "x" [0-9]+ | "y"\n', ["y", "x12,y,x3"], ["x", "y,", ""]),
    (CHOICE, ["yes", "no", "no way", 'say "é"\\'], ["yes", "no", "no way", 'say "é"\\'], ["", "ye", "yess", "now"]),
    (STRUCTURAL_TAG, TAGS, ["hi", "hi <f=b>12</f> and", '<f=a>{"a":1,"b":""}</f><f=b>3</f>', ""], ["<f=b>x</f>", "<f=c>1</f>", "<f=b>1"]),
]


@pytest.mark.parametrize(("kind", "text", "good", "bad"), ACCEPTED)
def test_accepts_exactly_what_the_grammar_says(any_engine: Any, kind: str, text: Any, good: list[str], bad: list[str]) -> None:
    grammar = any_engine.compile(kind, text)
    assert [output for output in good if not any_engine.takes(grammar, output)] == []
    assert [output for output in bad if any_engine.takes(grammar, output)] == []


def test_claims_and_serves_every_kind(engine: Any) -> None:
    assert set(engine.backend.capabilities.kinds) == set(GRAMMAR_KINDS) == {kind for kind, *_ in ACCEPTED}


def test_compact_json_has_no_whitespace_but_perhaps_one_blank(engine: Any) -> None:
    """Known bug 83."""
    grammar = engine.compile(JSON_SCHEMA, PERSON, any_whitespace=False)
    assert engine.takes(grammar, '{"a":1,"b":"x y"}')
    for output in ('{"a":1,\n"b":"x"}', '{ "a":1,"b":"x"}', '{"a":1,  "b":"x"}', '{"a":1,"b":"x"}\n'):
        assert not engine.takes(grammar, output)


def test_runs_of_whitespace_can_be_bounded(make_engine: Any) -> None:
    """Known bug 83."""
    engine = make_engine(max_whitespace=2)
    grammar = engine.compile(JSON_SCHEMA, PERSON)
    assert engine.takes(grammar, '{"a": 1,\n "b":"x"}')
    assert not engine.takes(grammar, '{"a":   1,"b":"x"}')


@pytest.mark.parametrize("escape", [r"\n", r"\"", r"\\"])
def test_escapes_count_as_one_character(engine: Any, escape: str) -> None:
    """Known bug 83. xgrammar would forbid escapes; it is not asked."""
    schema = {"type": "string", "maxLength": 8}
    if engine.name == "xgrammar":
        with pytest.raises(GrammarError, match="does not heed maxLength"):
            engine.compile(JSON_SCHEMA, schema)
        return
    grammar = engine.compile(JSON_SCHEMA, schema)
    assert engine.takes(grammar, f'"{escape * 8}"')
    assert not engine.takes(grammar, f'"{escape * 9}"')


REFUSED = [
    (JSON_SCHEMA, {"type": "foo"}),
    (JSON_SCHEMA, {"$ref": "#/nope"}),
    (JSON_SCHEMA, {"type": "integer", "minimum": 3, "maximum": 1}),
    (JSON_SCHEMA, {"type": "array", "uniqueItems": True}),
    (JSON_SCHEMA, {"type": "object", "properties": {"x": {"not": {"type": "string"}}}}),
    (JSON_SCHEMA, {"type": "string", "format": "no-such-format"}),
    (JSON_SCHEMA, {"type": "array", "contains": {"type": "string"}}),
    (JSON_SCHEMA, {"oneOf": [{"type": "integer"}, {"type": "number"}]}),
    (JSON_SCHEMA, '{"type": "array", "items": ' * 3000 + "{}" + "}" * 3000),
    (JSON_SCHEMA, "{"),
    (REGEX, "[a"),
    (REGEX, "a(?=b)"),
    (REGEX, "\\"),
    (EBNF, "root ::= "),
    (EBNF, 'root = "a"'),
    (EBNF, 'foo ::= "a"'),
    (EBNF, "root ::= nothing"),
    (STRUCTURAL_TAG, {"structures": [], "triggers": ["<"]}),
    (STRUCTURAL_TAG, {"structures": [{"begin": "x", "schema": {}, "end": ""}], "triggers": ["<"]}),
    (STRUCTURAL_TAG, {"structures": [{"begin": "<", "schema": {"type": "foo"}, "end": ""}], "triggers": ["<"]}),
    (JSON_SCHEMA, {"type": "string", "description": "x" * 1_000_001}),
]


@pytest.mark.parametrize(("kind", "text"), REFUSED, ids=[f"{kind}-{index}" for index, (kind, _) in enumerate(REFUSED)])
def test_bad_grammars_are_refused_in_words(engine: Any, kind: str, text: Any) -> None:
    """Known bug 77."""
    with pytest.raises(GrammarError) as caught:
        engine.compile(kind, text)
    assert str(caught.value).strip()
    assert "Traceback" not in str(caught.value)
    assert ".cc:" not in str(caught.value)


@pytest.mark.parametrize(("kind", "text"), [(JSON_SCHEMA, {"$ref": "#"}), (EBNF, 'root ::= root "a"')])
def test_a_grammar_that_nothing_fulfils_is_refused(engine: Any, kind: str, text: Any) -> None:
    """Known bug 77."""
    with pytest.raises(GrammarError, match=r"no output|Circular"):
        engine.compile(kind, text)


def test_a_large_expression_compiles_or_is_refused_but_does_not_explode(engine: Any) -> None:
    try:
        matcher = engine.compile(REGEX, "(a|b){1,100000}").matcher()
    except GrammarError:
        return
    for _ in range(50):
        assert matcher.accept(engine.ids("a")[0])
    assert engine.end in engine.allowed(matcher)


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, text, *_ in ACCEPTED])
def test_the_mask_is_what_accept_takes_and_rollback_restores_it(any_engine: Any, kind: str, text: Any) -> None:
    """Random walks: at each place the mask equals the set of ids that are accepted, and is the same after going on and back."""
    chance = random.Random(7)
    grammar = any_engine.compile(kind, text)
    for _ in range(3):
        matcher, masks, walked = grammar.matcher(), [], list[int]()
        while len(walked) < 12 and not matcher.is_ended:
            allowed = any_engine.allowed(matcher)
            masks.append(allowed)
            assert allowed
            assert max(allowed) < len(any_engine.tokenizer)
            for token_id in [*chance.sample(range(any_engine.vocab_size), 40), any_engine.end]:
                accepted = matcher.accept(token_id)
                twins = {other for other in allowed if any_engine.bytes_of(other) == any_engine.bytes_of(token_id)}
                assert accepted or token_id not in allowed
                assert not accepted or twins, (walked, token_id)
                if accepted:
                    matcher.rollback(1)
            walked.append(chance.choice(sorted(allowed)))
            assert matcher.accept(walked[-1])
        for _ in range(2):
            matcher.rollback(len(walked))
            assert any_engine.allowed(matcher) == masks[0]
            assert not matcher.is_ended
            assert all(matcher.accept(token_id) for token_id in walked)
        for place in range(len(walked) - 1, -1, -1):
            matcher.rollback(1)
            assert any_engine.allowed(matcher) == masks[place]


def test_special_and_padded_ids_are_never_allowed_but_the_end(any_engine: Any) -> None:
    """Known bug 79: the mask of a grammar that takes any text."""
    tokenizer = any_engine.tokenizer
    matcher = any_engine.compile(REGEX, r"(.|\n)*").matcher()
    allowed = any_engine.allowed(matcher)
    assert any_engine.end in allowed
    assert tokenizer.pad_token_id not in allowed
    assert not allowed & set(range(len(tokenizer), any_engine.vocab_size + 32))
    assert not matcher.accept(tokenizer.pad_token_id)
    assert not matcher.accept(len(tokenizer) + 1)
    assert not matcher.accept(-1)


def test_matchers_of_one_grammar_are_apart(engine: Any) -> None:
    grammar = engine.compile(CHOICE, ["ab", "cd"])
    first, second = grammar.matcher(), grammar.matcher()
    assert first.accept(engine.ids("c")[0])
    assert engine.allowed(second) == engine.allowed(grammar.matcher())
    assert engine.allowed(first) != engine.allowed(second)


def test_grammars_compile_on_several_threads_at_once(engine: Any) -> None:
    found: list[bool] = []

    def work(number: int) -> None:
        for _ in range(5):
            grammar = engine.compile(JSON_SCHEMA, {"type": "integer", "maximum": number + 10})
            found.append(engine.takes(grammar, str(number + 10)) and not engine.takes(grammar, str(number + 11)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert found == [True] * 30
