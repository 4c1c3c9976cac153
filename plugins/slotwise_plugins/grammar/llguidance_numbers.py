"""llguidance keeps the numbers of a schema as doubles. Bounds that no double equals are drawn in to the next one, so that every output
still fulfils the schema; other such numbers are refused.

What this file does not know: llguidance.
"""

from __future__ import annotations

import math
from typing import Any

from slotwise.interfaces.grammar import GrammarError

_EXACT = 2**53
_LARGEST = 2**63
"""Integers are ranges of 64 bits there."""
_UPPER = ("maximum", "exclusiveMaximum")
_LOWER = ("minimum", "exclusiveMinimum")


def with_exact_numbers(schema: Any) -> Any:
    """A copy. Raises GrammarError for a constant that would be rounded, or a bound that would be dropped."""
    if isinstance(schema, list):
        return [with_exact_numbers(item) for item in schema]
    if isinstance(schema, dict):
        return {
            key: _bound(key, value) if key in _UPPER + _LOWER and _is_integer(value) else with_exact_numbers(value)
            for key, value in schema.items()
        }
    if _is_integer(schema) and abs(schema) > _EXACT:
        raise GrammarError(f"llguidance would round the number {schema}; integers up to 2**53 are exact")
    return schema


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bound(key: str, value: int) -> int:
    if abs(value) <= _EXACT:
        return value
    if abs(value) > _LARGEST:
        raise GrammarError(f"{key} is {value}, but bounds are at most 2**63")
    nearest = float(value)
    if key in _UPPER and (int(nearest) > value or nearest >= _LARGEST):
        nearest = math.nextafter(nearest, -math.inf)
    if key in _LOWER and (int(nearest) < value or nearest <= -_LARGEST):
        nearest = math.nextafter(nearest, math.inf)
    return int(nearest)
