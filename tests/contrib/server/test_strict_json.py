"""JSON in and out, without what JSON does not have."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise_contrib.server.strict_json import StrictJSONError, dump_json, parse_json

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=6,
)
BAD_NUMBERS = st.sampled_from(["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])


@settings(max_examples=50, deadline=None)
@given(VALUES)
def test_what_is_written_is_read_back(value: object) -> None:
    assert parse_json(dump_json(value)) == value


@settings(max_examples=50, deadline=None)
@given(TEXT, VALUES, BAD_NUMBERS, st.integers(0, 5))
def test_a_number_that_is_not_finite_is_found_at_any_depth(field: str, other: object, number: str, depth: int) -> None:
    text = "[" + json.dumps({f"-{field}": other}) + f",{{{json.dumps(field)}: {'[' * depth + number + ']' * depth}}}]"
    with pytest.raises(StrictJSONError, match="not finite"):
        parse_json(text.encode())


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": [-math.inf]}])
def test_never_writes_numbers_that_are_not_finite(value: object) -> None:
    with pytest.raises(ValueError, match="JSON"):
        dump_json(value)


@pytest.mark.parametrize(
    ("text", "field"), [('{"a": NaN}', "a"), ('{"a": 1, "b": [{"c": "\\ud83d"}]}', "b"), ('{"\\udc00": 1}', None), ("[NaN]", None)]
)
def test_names_the_outermost_field(text: str, field: str | None) -> None:
    with pytest.raises(StrictJSONError) as error:
        parse_json(text.encode())
    assert error.value.field == field


def test_paired_surrogate_escapes_are_text() -> None:
    assert parse_json(b'{"a": "\\ud83d\\ude42"}') == {"a": "\U0001f642"}


def test_text_with_lone_surrogates_can_be_written() -> None:
    assert dump_json({"message": "\ud800"}) == b'{"message":"?"}'
