"""What both grammar engines need of a `GrammarSpec`: limits of its text, and its parts.

What this file does not know: grammar engines.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from slotwise.interfaces.grammar import BITS_PER_WORD, CompiledGrammar, GrammarError, GrammarSpec

MAX_DEPTH = 60
"""Levels of a JSON schema; engines recurse."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Structure:
    """One structure of a structural tag."""

    trigger: str
    """The first trigger that its beginning starts with."""
    begin: str
    schema: Any
    end: str


def check_size(spec: GrammarSpec, max_bytes: int) -> int:
    """Length of the text in bytes. Raises GrammarError if it is too long, or no text."""
    try:
        num_bytes = len(spec.text.encode())
    except UnicodeEncodeError as error:
        raise GrammarError(f"the {spec.kind} is no valid text: {error}") from error
    if num_bytes > max_bytes:
        raise GrammarError(f"the {spec.kind} has {num_bytes} bytes, but at most {max_bytes} are taken (grammar.options.max_text_bytes)")
    return num_bytes


def check_expression(text: str) -> None:
    """Raises GrammarError for a regular expression that ends within an escape, which not every engine notices."""
    if (len(text) - len(text.rstrip("\\"))) % 2:
        raise GrammarError("the expression ends with a backslash that escapes nothing")


def refuse_dead_end(grammar: CompiledGrammar, vocab_size: int) -> None:
    """Raises GrammarError if no output fulfils the grammar."""
    mask = torch.zeros(-(-vocab_size // BITS_PER_WORD), dtype=torch.int32)
    grammar.matcher().fill_mask(mask)
    if not mask.any():
        raise GrammarError("no output fulfils the grammar")


def parsed(text: str) -> Any:
    """JSON within the limits of depth, without NaN, infinities and lone surrogates. Raises GrammarError."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"it is no JSON: {error or type(error).__name__}") from error
    _check_depth(value)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise GrammarError(f"it is nested deeper than {MAX_DEPTH} levels")
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())]


def schema_of(value: Any) -> dict[str, Any]:
    """A schema as an object; `true` is one that everything fulfils. Raises GrammarError."""
    if value is True:
        return {}
    if value is False:
        raise GrammarError("no output fulfils the schema `false`")
    if not isinstance(value, dict):
        raise GrammarError(f"a schema is a JSON object, got {json.dumps(value):.40}")
    return value


def choices(text: str) -> list[str]:
    """Of a CHOICE. Raises GrammarError."""
    value = parsed(text)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise GrammarError(f"choices are a list of at least one text, got {json.dumps(value):.60}")
    return value


def structures(text: str) -> list[Structure]:
    """Of a structural tag: `{"structures": [{"begin", "schema", "end"}, ...], "triggers": [...]}`. Raises GrammarError."""
    value = parsed(text)
    entries, triggers = (value.get("structures"), value.get("triggers")) if isinstance(value, dict) else (None, None)
    if not isinstance(entries, list) or not entries or not isinstance(triggers, list) or not triggers:
        raise GrammarError('a structural tag has the form {"structures": [{"begin": ..., "schema": ..., "end": ...}], "triggers": [...]}')
    if not all(isinstance(trigger, str) and trigger for trigger in triggers):
        raise GrammarError("triggers must be non-empty texts")
    return [_structure(entry, triggers) for entry in entries]


def _structure(entry: Any, triggers: list[str]) -> Structure:
    if not isinstance(entry, dict) or not isinstance(entry.get("begin"), str) or not isinstance(entry.get("end", ""), str):
        raise GrammarError('each structure needs "begin" and "end" as texts and a "schema"')
    begin = entry["begin"]
    trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
    if trigger is None:
        raise GrammarError(f"the structure that begins with {begin!r:.60} starts with none of the triggers, so it could never come")
    return Structure(trigger=trigger, begin=begin, schema=schema_of(entry.get("schema", {})), end=entry.get("end", ""))
