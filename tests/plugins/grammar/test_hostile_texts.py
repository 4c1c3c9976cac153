"""Texts made to hurt: each is compiled or refused in words, soon, and what is compiled can be used."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import Any

import pytest

from slotwise.interfaces.grammar import CHOICE, JSON_OBJECT, JSON_SCHEMA, REGEX, STRUCTURAL_TAG, CompiledGrammar, GrammarError, GrammarSpec

INTEGER = {"type": "integer"}
TEXTS: list[tuple[str, Any]] = [
    (REGEX, "(" * 100_000 + "a" + ")" * 100_000),
    (REGEX, "(" * 1000 + "a" + ")" * 1000),
    (REGEX, "(" * 200 + "a" + ")*" * 200),
    (REGEX, "((a{1,1000}){1,1000}){1,1000}"),
    (REGEX, "a{1,1000000000}"),
    (REGEX, "a{1,1" + "0" * 30 + "}"),
    (REGEX, "(a|b)*a(a|b){40}"),
    (REGEX, ".*a.{2000}"),
    (REGEX, "a\0b"),
    (REGEX, "[" + "".join(chr(0x4E00 + index) for index in range(5000)) + "]+"),
    (REGEX, "|".join(f"ab{index}" for index in range(5000))),
    (CHOICE, ["x" * 20_000]),
    (CHOICE, [f"choice {index}" for index in range(3000)]),
    (CHOICE, ["\x01\x7f\n\t\r\b\f/\\\"'", "é\u2028😀", "a\0b"]),
    (JSON_SCHEMA, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
    (JSON_SCHEMA, {"type": "object", "$ref": "#"}),
    (JSON_SCHEMA, {"anyOf": [{"$ref": "#"}, INTEGER]}),
    (JSON_SCHEMA, {"allOf": [{"$ref": "#"}]}),
    (JSON_SCHEMA, {"$ref": "file:///etc/passwd"}),
    (JSON_SCHEMA, {"type": "string", "minLength": 1_000_000_000}),
    (JSON_SCHEMA, {"type": "array", "items": {"type": "array", "items": INTEGER, "minItems": 10_000}, "minItems": 10_000}),
    (JSON_SCHEMA, {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(1000)}}),
    (JSON_SCHEMA, {"enum": [f"e{index}" for index in range(3000)]}),
    (JSON_SCHEMA, '{"anyOf":[' * 28 + '{"type":"integer"}' + ',{"type":"string"}]}' * 28),
    (JSON_SCHEMA, {"$ref": "#/d/0", "d": {**{str(i): {"items": {"$ref": f"#/d/{i + 1}"}} for i in range(3000)}, "3000": INTEGER}}),
    (
        JSON_SCHEMA,
        {
            "$ref": "#/d/0",
            "d": {**{str(i): {"anyOf": [{"$ref": f"#/d/{i + 1}"}, {"$ref": f"#/d/{i + 1}"}]} for i in range(30)}, "30": INTEGER},
        },
    ),
    (JSON_SCHEMA, {"allOf": [{"anyOf": [{"properties": {f"a{i}": INTEGER}}, {"properties": {f"b{i}": INTEGER}}]} for i in range(16)]}),
    (
        STRUCTURAL_TAG,
        {
            "structures": [{"begin": f"<f{i}>", "schema": INTEGER, "end": "</f>"} for i in range(200)],
            "triggers": [f"<f{i}" for i in range(200)],
        },
    ),
    (
        STRUCTURAL_TAG,
        {
            "structures": [{"begin": begin, "schema": {"type": kind}, "end": ""} for begin in ("<", "<f>") for kind in ("integer", "null")],
            "triggers": ["<", "<f"],
        },
    ),
]


@pytest.mark.parametrize(("kind", "text"), TEXTS, ids=[f"{kind}-{index}" for index, (kind, _) in enumerate(TEXTS)])
def test_is_compiled_or_refused(engine: Any, kind: str, text: Any) -> None:
    """Known bug 77. A random walk along what is allowed is accepted all the way."""
    grammar = engine.compile_or_refuse(kind, text)
    if isinstance(grammar, str):
        assert grammar.strip()
        return
    chance, matcher = random.Random(1), grammar.matcher()
    for _ in range(30):
        assert matcher.accept(chance.choice(sorted(engine.allowed(matcher))))
        if matcher.is_ended:
            break


NO_GRAMMARS: list[tuple[str, str, str]] = [
    (REGEX, "a\ud800", "no valid text"),
    (CHOICE, "[]", "at least one text"),
    (CHOICE, "[1]", "at least one text"),
    (CHOICE, '{"a": 1}', "at least one text"),
    (CHOICE, '["\\ud800"]', "no JSON"),
    (STRUCTURAL_TAG, "[]", "has the form"),
    (STRUCTURAL_TAG, "null", "has the form"),
    (STRUCTURAL_TAG, json.dumps({"structures": [{"begin": "<", "schema": 5, "end": ""}], "triggers": ["<"]}), "is a JSON object"),
    (STRUCTURAL_TAG, json.dumps({"structures": [{"begin": 5}], "triggers": ["<"]}), "begin"),
    (STRUCTURAL_TAG, json.dumps({"structures": [{"begin": "<"}], "triggers": [""]}), "non-empty"),
]


@pytest.mark.parametrize(("kind", "text", "message"), NO_GRAMMARS)
def test_what_has_not_the_form_of_its_kind_is_refused(engine: Any, kind: str, text: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        engine.compile(kind, text)


def test_compact_structural_tags_are_compact_or_refused(engine: Any) -> None:
    tag = {"structures": [{"begin": "<f>", "schema": {"type": "array", "items": INTEGER}, "end": "</f>"}], "triggers": ["<f>"]}
    if engine.name == "xgrammar":
        with pytest.raises(GrammarError, match="cannot forbid whitespace within structural tags"):
            engine.compile(STRUCTURAL_TAG, tag, any_whitespace=False)
        return
    grammar = engine.compile(STRUCTURAL_TAG, tag, any_whitespace=False)
    assert engine.takes(grammar, "a  b<f>[1,2]</f>")
    assert not engine.takes(grammar, "<f>[1,  2]</f>")


def test_deeply_nested_output_is_followed_and_taken_back(engine: Any) -> None:
    """Matchers do not recurse: 3000 open lists."""
    (bracket,) = engine.ids("[")
    grammar = engine.compile(JSON_SCHEMA, {"type": "array", "items": {"$ref": "#"}}, any_whitespace=False)
    matcher = grammar.matcher()
    start = engine.allowed(matcher)
    for _ in range(3000):
        assert matcher.accept(bracket)
    assert engine.ids("]")[0] in engine.allowed(matcher)
    matcher.rollback(3000)
    assert engine.allowed(matcher) == start


def test_threads_go_on_while_a_grammar_is_compiled(engine: Any) -> None:
    """The engines let go of the interpreter: this thread counts on while another compiles 3000 alternatives."""
    spec = GrammarSpec(kind=REGEX, text="|".join(f"{index}[a-z]+x{index}" for index in range(3000)))
    done: list[CompiledGrammar] = []
    thread = threading.Thread(target=lambda: done.append(engine.backend.compile(spec)))
    turns = 0
    thread.start()
    while thread.is_alive():
        turns += 1
        time.sleep(0)
    assert done
    assert turns > 3
    assert engine.allowed(engine.compile(JSON_OBJECT, "").matcher())
