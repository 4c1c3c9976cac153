"""JSON as its standard has it, in both directions: no NaN, no Infinity, no broken text. This file does not know HTTP."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class StrictJSONError(ValueError):
    """The text is not JSON, or holds a value that JSON cannot have. `field` names the outermost key at fault, if there is one."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


def parse_json(data: bytes) -> Any:
    """Raises StrictJSONError for malformed text, too deep nesting, numbers that are not finite, and unpaired surrogates."""
    suspects: list[str] = []

    def number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            suspects.append(text)
        return value

    try:
        text = data.decode("utf-8")
        value = json.loads(text, parse_float=number, parse_constant=number)
    except RecursionError:
        raise StrictJSONError("The body is nested too deeply; send plain values, lists and objects.") from None
    except ValueError as error:
        raise StrictJSONError(f"The body is not valid JSON: {error}.") from error
    if suspects or _SURROGATE_ESCAPE.search(text):
        _refuse_bad_values(value)
    return value


def dump_json(value: Any) -> bytes:
    """UTF-8 on one line. Raises ValueError for NaN and infinities: whoever makes them replaces them first."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def _refuse_bad_values(value: Any) -> None:
    fields = value.items() if isinstance(value, Mapping) else [("", value)]
    for field, content in fields:
        fault = _fault([field, content])
        if fault is not None:
            name = field if field and field.isprintable() and field.isascii() else None
            raise StrictJSONError(f"{name or 'The body'} holds {fault}.", field=name)


def _fault(value: Any) -> str | None:
    """What is wrong somewhere inside a value. A loop, since the value may be nested as deeply as the parser allows."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, float) and not math.isfinite(item):
            return "a number that is not finite; NaN and Infinity are no JSON, and numbers must be below 1.8e308"
        if isinstance(item, str) and any("\ud800" <= char <= "\udfff" for char in item):
            return "a lone surrogate, which is no text; send whole characters"
        if isinstance(item, Mapping):
            pending += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            pending += item
    return None
