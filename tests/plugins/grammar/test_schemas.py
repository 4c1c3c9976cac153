"""JSON schemas: whatever an engine lets through fulfils the schema; what it would not hold to, it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slotwise.interfaces.grammar import JSON_SCHEMA, REGEX, GrammarError

INTEGER = {"type": "integer"}
VIOLATIONS: list[tuple[dict[str, Any], list[str]]] = [
    ({"$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": INTEGER}}, ["4"]),
    ({"$ref": "#a", "$defs": {"a": {"$anchor": "a", "type": "integer"}}}, ['"a"']),
    ({"$ref": "x.json", "$defs": {"a": {"$id": "x.json", "type": "integer"}}}, ['"a"']),
    ({"$ref": "http://example.com/x.json"}, ["1"]),
    ({"$dynamicRef": "#/$defs/a", "$defs": {"a": INTEGER}}, ['"a"']),
    ({"type": ["string", "integer"], "minimum": 3}, ["2", "null"]),
    ({"type": "string", "pattern": "^a+$"}, ['"b"', '"ab"']),
    ({"type": "string", "pattern": "(?=a)b"}, ['"b"']),
    ({"type": "string", "pattern": "a^b"}, ['"ab"']),
    ({"type": "string", "pattern": '^"$'}, ['"""']),
    ({"type": "string", "pattern": r"^\\$"}, ['"\\"']),
    ({"type": "string", "pattern": "^[^a]$"}, ['"""', '"\n"']),
    ({"type": "string", "pattern": "^[!-~]$"}, ['"""', '"\\"']),
    ({"type": "string", "pattern": r"^\s$"}, ['"\n"']),
    ({"type": "string", "pattern": "^.$"}, ['"\n"', '"""']),
    ({"type": "string", "format": "date", "pattern": "^2"}, ['"1024-01-02"']),
    ({"type": "string", "format": "ipv4"}, ['"1.2.3.400"']),
    ({"type": "string", "minLength": 2}, ['"a"']),
    ({"type": "string"}, ['"a\nb"', '"\\x"']),
    ({"type": "object", "patternProperties": {"^a": INTEGER}, "properties": {"ab": {"type": "string"}}}, ['{"ab":"x"}', '{"ab":1}']),
    ({"type": "object", "patternProperties": {"^a$": INTEGER, "^ab*$": {"type": "string"}}}, ['{"a":"x"}', '{"a":1}']),
    ({"type": "object", "propertyNames": {"type": "string", "pattern": "^x$"}, "properties": {"ab": INTEGER}}, ['{"ab":1}']),
    ({"type": "object", "additionalProperties": INTEGER}, ['{"x":"a"}']),
    ({"type": "object", "properties": {"a": INTEGER}}, ['{"a":"x"}', '{"b":1,"a":"x"}']),
    ({"type": "object", "properties": {"a": INTEGER}, "required": ["a", "z"]}, ['{"a":1}']),
    ({"type": "object", "required": ["z"]}, ["{}", '{"a":1}']),
    ({"type": "object", "minProperties": 1, "maxProperties": 2}, ["{}", '{"a":1,"b":1,"c":1}']),
    ({"type": "object", "dependencies": {"a": ["b"]}}, ['{"a":1}']),
    ({"type": "object", "properties": {"a": {"not": INTEGER}}}, ['{"a":1}']),
    ({"type": "array", "prefixItems": [INTEGER], "items": False}, ["[1,2]", '["a"]']),
    ({"type": "array", "items": [INTEGER]}, ['["a"]']),
    ({"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 2}, ["[]", "[1,1,1]"]),
    ({"type": "array", "unevaluatedItems": False}, ["[1]"]),
    ({"type": "number", "minimum": 0.1, "exclusiveMaximum": 1}, ["0.09", "1", "1e5"]),
    ({"type": "integer", "minimum": 9007199254740993}, ["9007199254740992"]),
    ({"type": "integer", "maximum": 9223372036854775807}, ["9223372036854775808"]),
    ({"type": "integer", "minimum": 2**70}, ["9223372036854775808"]),
    ({"type": "integer", "multipleOf": 3, "minimum": 5}, ["3", "7"]),
    ({"type": "integer", "multipleOf": 1025}, ["3"]),
    ({"type": "number", "multipleOf": 0.5}, ["0.3"]),
    ({"const": 9007199254740993}, ["9007199254740992"]),
    ({"enum": [2**64 + 1]}, [str(2**64)]),
    ({"enum": ["a", 1], "type": "string"}, ["1"]),
    ({"const": "a", "pattern": "b", "type": "string"}, ['"a"']),
    ({"enum": [1, 2, 3], "minimum": 2, "type": "integer"}, ["1"]),
    ({"enum": [True], "type": "integer"}, ["true"]),
    ({"anyOf": [INTEGER, {"type": "string"}], "type": "integer"}, ['"a"']),
    ({"anyOf": [{"required": ["a"]}], "type": "object", "properties": {"a": INTEGER, "b": INTEGER}}, ["{}", '{"b":1}']),
    ({"allOf": [{"minimum": 3}], "type": "integer"}, ["2"]),
    ({"allOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 4}]}, ["2", "5"]),
    ({"anyOf": []}, ["1", ""]),
    ({"x-guidance": {"lenient": True}, "not": INTEGER}, ["1"]),
]


@pytest.mark.parametrize(("schema", "bad"), VIOLATIONS)
def test_no_output_violates_the_schema(engine: Any, schema: dict[str, Any], bad: list[str]) -> None:
    grammar = engine.compile_or_refuse(JSON_SCHEMA, schema)
    assert grammar
    assert isinstance(grammar, str) or [output for output in bad if engine.takes(grammar, output)] == []


FULFILLED: list[tuple[Any, list[str]]] = [
    (True, ["1", "[]"]),
    ({"enum": ["😀", "é\u2028"]}, ['"😀"', '"é\u2028"']),
    ({"type": "object", "properties": {"😀": INTEGER}, "required": ["😀"], "additionalProperties": False}, ['{"😀":1}']),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string", "pattern": "^(a|[0-9.-])+$"}}}, ['"aa"', '"1.5-a"']),
    ({"type": ["string", "null"], "enum": ["a", None], "title": "x", "default": None, "description": "y"}, ['"a"', "null"]),
    ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "X"}, ['"a"', "null"]),
    (
        {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]},
        ['{"next":{"next":null}}'],
    ),
    ({"type": "string", "format": "date"}, ['"2024-01-02"']),
    ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, ["-9007199254740993", "9007199254740993"]),
    ({"type": "integer", "multipleOf": 3}, ["3", "-3", "0"]),
    ({"type": "number", "minimum": 0, "maximum": 1}, ["0", "0.5", "1"]),
    ({"const": {"a": [1, None]}}, ['{"a":[1,null]}']),
    ({"type": "integer", "x-unknown": 3}, ["1"]),
]


@pytest.mark.parametrize(("schema", "good"), FULFILLED)
def test_common_schemas_are_served(engine: Any, schema: Any, good: list[str]) -> None:
    grammar = engine.compile(JSON_SCHEMA, json.dumps(schema))
    assert [output for output in good if not engine.takes(grammar, output)] == []


MALFORMED: list[dict[str, Any]] = [
    {"type": "object", "required": 5},
    {"type": "object", "required": [{"a": 1}]},
    {"type": "object", "properties": [1]},
    {"type": "string", "format": ["a"]},
    {"type": "string", "pattern": 5},
    {"type": "string", "pattern": "[a"},
    {"anyOf": 5},
    {"enum": 5},
    {"enum": []},
    {"$ref": 5},
    {"type": 5},
    {"type": "integer", "minimum": "a"},
    {"type": "array", "minItems": "x"},
]


@pytest.mark.parametrize("schema", MALFORMED)
def test_malformed_schemas_are_refused_in_words(engine: Any, schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarError) as caught:
        engine.compile(JSON_SCHEMA, schema)
    assert str(caught.value).strip()
    assert "%llguidance" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["3", "[]", "false", '{"minimum": NaN}', '{"minimum": 1e999}', '{"enum": ["\\ud800"]}', '{"a": ' + "9" * 5000]
)
def test_what_is_no_schema_is_refused(engine: Any, text: str) -> None:
    with pytest.raises(GrammarError):
        engine.compile(JSON_SCHEMA, text)


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("a^b", "ab"),
        ("a$b", "ab"),
        (".", "\n"),
        (r"\z", "z"),
        (r"[\p{L}]", "{"),
        ("[a&&b]", "&"),
        (r"a\Ab", "aAb"),
        (r"\e", "e"),
        ("[[:alpha:]]", "[]"),
    ],
)
def test_expressions_mean_what_they_mean_elsewhere_or_are_refused(engine: Any, text: str, bad: str) -> None:
    grammar = engine.compile_or_refuse(REGEX, text)
    assert grammar
    assert isinstance(grammar, str) or not engine.takes(grammar, bad)
