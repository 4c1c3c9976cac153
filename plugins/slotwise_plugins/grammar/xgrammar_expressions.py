"""Regular expressions as xgrammar reads them: what it would ignore is refused, and `.` does not match a newline, as everywhere else.

Within a JSON string it would write out a quote, a backslash or a control character that the expression allows, without an escape; patterns
that allow one are refused. What this file does not know: xgrammar's own grammars.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from slotwise.interfaces.grammar import GrammarError

_TOKEN = re.compile(r"\[\^?(?:[^\]\\]|\\.)*\]|\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]+\}|.)|\(\?.|.", re.DOTALL)
_CLASS_TOKEN = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]+\}|.)|.", re.DOTALL)
_LETTERS = frozenset("dDwWsSnrtfv0")
"""Escaped letters that mean what they mean everywhere; x and u beside them."""
_CONTROL = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0}
_BEYOND_ANY = frozenset("DWSs")
"""Classes with a quote, a backslash or a control character in them."""
_UNSAFE = "it could match a quote, a backslash or a control character, which xgrammar would not escape in a JSON string"


def checked_expression(text: str) -> str:
    """The expression as xgrammar must get it. Raises GrammarError for what it would ignore or take for something else."""
    tokens = _tokens(text)
    for index, token in enumerate(tokens):
        if (token == "^" and index > 0 and tokens[index - 1] not in ("(", "(?:", "|")) or (
            token == "$" and index + 1 < len(tokens) and tokens[index + 1] not in (")", "|")
        ):
            raise _fault(text, f"{token!r} within it is ignored")
        for escape in _escapes(token):
            if escape[1].isalnum() and escape[1] not in _LETTERS and len(escape) == 2:
                raise _fault(text, f"{escape} is not known")
        if token.startswith("[") and re.search(r"&&|--|~~|\[[:.=]", token):
            raise _fault(text, f"operators within {token} are not known")
    return "".join(r"[^\n]" if token == "." else token for token in tokens)


def check_pattern(text: str) -> None:
    """Raises GrammarError for a `pattern` of JSON strings that xgrammar would ignore in part, or write out as broken JSON."""
    checked_expression(text)
    for token in _tokens(text):
        if token == "." or token.startswith("[^"):
            raise _fault(text, _UNSAFE)
        if token.startswith("(?") and token != "(?:":
            raise _fault(text, f"{token} is ignored")
        if token.startswith("["):
            _check_class(text, token)
        elif not _is_safe(_code(token)):
            raise _fault(text, _UNSAFE)


def _check_class(text: str, token: str) -> None:
    parts = _CLASS_TOKEN.findall(token[1:-1])
    codes = [_code(part) for part in parts]
    for index, code in enumerate(codes):
        is_range = parts[index] == "-" and 0 < index < len(codes) - 1
        first, last = codes[index - 1], codes[index + 1] if is_range else code
        if not _is_safe(code) or (
            is_range and first is not None and last is not None and any(first <= bad <= last for bad in (34, 92, *range(32)))
        ):
            raise _fault(text, _UNSAFE)


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def _escapes(token: str) -> Iterator[str]:
    return (part for part in _CLASS_TOKEN.findall(token) if len(part) > 1)


def _code(part: str) -> int | None:
    """The character that a token means; None for a class like `\\d`; -1 for a class with unsafe characters."""
    if not part.startswith("\\") or len(part) == 1:
        return ord(part[0])
    if len(part) > 2:
        return int(part[2:].strip("{}"), 16)
    if part[1] in "dw":
        return None
    return -1 if part[1] in _BEYOND_ANY else _CONTROL.get(part[1], ord(part[1]))


def _is_safe(code: int | None) -> bool:
    return code is None or (code >= 32 and code not in (34, 92))


def _fault(text: str, message: str) -> GrammarError:
    return GrammarError(f'the expression {text!r:.80}: {message}; change it, or use grammar.use = "llguidance"')
