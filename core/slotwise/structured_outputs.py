"""`StructuredOutputsParams`: the form a request's output must have. Names follow vLLM's public API.

What this file does not know: tokens, grammar engines, how long a compilation takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slotwise.errors import InvalidRequestError
from slotwise.interfaces.grammar import CHOICE, EBNF, JSON_OBJECT, JSON_SCHEMA, REGEX, STRUCTURAL_TAG, GrammarSpec

_FORMS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


@dataclass(kw_only=True, slots=True)
class StructuredOutputsParams:
    """Exactly one form; the others stay None. Raises InvalidRequestError when it is made.

    json: a JSON schema, as a mapping or as JSON text. regex: the whole output matches it. choice: the output is one of these strings.
    grammar: EBNF with the start rule `root` (GBNF). json_object: True = any JSON object. structural_tag: `{"structures": [{"begin": text,
    "schema": schema, "end": text}, ...], "triggers": [text, ...]}`: free text, but what follows a trigger is one of the structures.
    disable_any_whitespace: JSON without blanks and newlines between its tokens, but for one blank after `,` and `:`.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Mapping[str, Any] | None = None
    disable_any_whitespace: bool = False

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raises InvalidRequestError."""
        if self.json_object is False:
            self.json_object = None
        given = [name for name in _FORMS if getattr(self, name) is not None]
        if len(given) != 1:
            raise _invalid(f"exactly one of {', '.join(_FORMS)} must be given, got {' and '.join(given) or 'none'}")
        if not isinstance(self.disable_any_whitespace, bool):
            raise _invalid(f"disable_any_whitespace must be true or false, got {self.disable_any_whitespace!r}")
        self.spec()

    def spec(self) -> GrammarSpec:
        """What a grammar backend gets."""
        any_whitespace = not self.disable_any_whitespace
        if self.json is not None:
            return GrammarSpec(kind=JSON_SCHEMA, text=_json_text("json", self.json), any_whitespace=any_whitespace)
        if self.json_object is not None:
            if self.json_object is not True:
                raise _invalid(f"json_object must be true, got {self.json_object!r}")
            return GrammarSpec(kind=JSON_OBJECT, text="", any_whitespace=any_whitespace)
        if self.structural_tag is not None:
            return GrammarSpec(kind=STRUCTURAL_TAG, text=_json_text("structural_tag", self.structural_tag), any_whitespace=any_whitespace)
        if self.choice is not None:
            return GrammarSpec(kind=CHOICE, text=json.dumps(_choices(self.choice), ensure_ascii=False))
        name, kind = ("regex", REGEX) if self.regex is not None else ("grammar", EBNF)
        return GrammarSpec(kind=kind, text=_text(name, getattr(self, name)))


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(f"structured_outputs: {message}.", param="structured_outputs")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _invalid(f"{name} must be a non-empty text, got {type(value).__name__} {value!r:.60}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _invalid(f"{name} is not valid text: {error}") from error
    return value


def _json_text(name: str, value: Any) -> str:
    """Normal form of a JSON object given as text or as a mapping. `true` is a schema as well, `false` is one that nothing fulfils."""
    try:
        loaded = json.loads(_text(name, value)) if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else value
        text = json.dumps(loaded, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise _invalid(f"{name} is not JSON: {error or type(error).__name__}") from error
    if not isinstance(loaded, dict):
        raise _invalid(f"{name} must be a JSON object, got {text:.60}")
    return _text(name, text)


def _choices(value: Any) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise _invalid(f"choice must be a list of texts, got {value!r:.60}")
    choices = [_text("choice", item) for item in value]
    if not choices:
        raise _invalid("choice is empty, so no output would be right; give at least one text")
    return choices
