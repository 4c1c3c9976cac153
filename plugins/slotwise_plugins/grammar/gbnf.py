"""The EBNF that requests write (GBNF, start rule `root`), parsed. Both grammar engines get their own spelling of the result.

    name ::= alternatives      "|" between alternatives, which may be empty; a rule ends where the next `name ::=` begins
    "text"  [a-z]  [^a-z]  .   characters; "." is any at all; escapes n r t, x41, u00e9, U0001F600, and of punctuation
    ( )  *  +  ?  {2}  {2,}  {2,5}  {,5}  # to the end of the line

What this file does not know: grammar engines, tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slotwise.interfaces.grammar import GrammarError

MAX_NESTING = 100
"""Brackets within brackets; the parser recurses, and so do the engines."""
MAX_RULES = 2000
ROOT = "root"
LAST_CHARACTER = 0x10FFFF
_TOKEN = re.compile(
    r"""(?P<blank>(?:\s|\#[^\n]*)+)
    | (?P<rule>[A-Za-z_][\w-]*(?=\s*::=)) \s*::=
    | (?P<name>[A-Za-z_][\w-]*)
    | "(?P<text>(?:[^"\\\n]|\\.)*)"
    | \[(?P<not>\^?)(?P<set>(?:[^\]\\\n]|\\.)*)\]
    | \{\s*(?P<least>\d*)\s*(?P<comma>,?)\s*(?P<most>\d*)\s*\}
    | (?P<sign>[.()|*+?])""",
    re.VERBOSE | re.ASCII,
)
_CHARACTER = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|([^\\])", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(frozen=True, slots=True)
class Text:
    """These characters, one after the other."""

    text: str


@dataclass(frozen=True, slots=True)
class Characters:
    """One character: within one of the ranges (first, last; code points, inclusive), or in none of them."""

    ranges: tuple[tuple[int, int], ...]
    is_negated: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """What the rule of that name says."""

    name: str


@dataclass(frozen=True, slots=True)
class Repeat:
    """The item, `least` to `most` times; None = no limit."""

    item: Item
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the alternatives, each a sequence of items."""

    alternatives: tuple[tuple[Item, ...], ...]


Item = Text | Characters | Rule | Repeat | Choice


def parse_gbnf(text: str) -> dict[str, Choice]:
    """Rules by name, in the order of the text, `root` among them; all names in them are known. Raises GrammarError with the line."""
    return _Parser(text).rules()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._next: re.Match[str] | None = None
        self._depth = 0
        self._used: dict[str, int] = {}
        self._advance()

    def rules(self) -> dict[str, Choice]:
        found: dict[str, Choice] = {}
        while self._next is not None:
            name = self._next["rule"]
            if name is None:
                raise self._fault(f"expected `name ::=`, found {self._next[0]!r:.20}")
            if name in found:
                raise self._fault(f"the rule {name!r} is defined twice")
            if len(found) >= MAX_RULES:
                raise GrammarError(f"the grammar has more than {MAX_RULES} rules")
            self._advance()
            found[name] = self._choice()
            if found[name].alternatives == ((),):
                raise self._fault(f'the rule {name!r} says nothing; write "" for the empty text')
        if ROOT not in found:
            raise GrammarError(f"the grammar has no rule {ROOT!r}, which is where it starts")
        unknown = next((name for name in self._used if name not in found), None)
        if unknown is not None:
            raise self._fault(f"the rule {unknown!r} is not defined", self._used[unknown])
        return found

    def _choice(self) -> Choice:
        alternatives = [self._sequence()]
        while self._is_sign("|"):
            self._advance()
            alternatives.append(self._sequence())
        return Choice(tuple(alternatives))

    def _sequence(self) -> tuple[Item, ...]:
        items: list[Item] = []
        while self._next is not None and self._next["rule"] is None and not self._is_sign("|") and not self._is_sign(")"):
            items.append(self._repeated(self._item()))
        return tuple(items)

    def _item(self) -> Item:
        token = self._next
        assert token is not None
        start = token.start()
        self._advance()
        if token["name"] is not None:
            self._used.setdefault(token["name"], start)
            return Rule(token["name"])
        if token["text"] is not None:
            return Text("".join(map(chr, self._characters(token["text"], start))))
        if token["set"] is not None:
            return Characters(self._ranges(token["set"], start), bool(token["not"]))
        if token["sign"] == ".":
            return Characters((), is_negated=True)
        if token["sign"] != "(":
            raise self._fault(f"{token[0]!r} stands where a text, a set of characters or a name must stand", start)
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._fault(f"brackets are nested deeper than {MAX_NESTING} levels", start)
        choice = self._choice()
        if not self._is_sign(")"):
            raise self._fault("this bracket is never closed", start)
        self._depth -= 1
        self._advance()
        return choice

    def _repeated(self, item: Item) -> Item:
        token = self._next
        if token is not None and token["sign"] in _REPEATS:
            self._advance()
            return Repeat(item, *_REPEATS[token["sign"]])
        if token is None or token["least"] is None:
            return item
        least, most = int(token["least"][:9] or 0), int(token["most"][:9] or 0) if token["most"] else None
        if not token["comma"]:
            most = least
        if (
            not (token["least"] or token["most"])
            or len(token["least"]) > 9
            or len(token["most"]) > 9
            or (most is not None and most < least)
        ):
            raise self._fault(f"{token[0]} is no range of counts", token.start())
        self._advance()
        return Repeat(item, least, most)

    def _ranges(self, text: str, start: int) -> tuple[tuple[int, int], ...]:
        codes = self._characters(text, start)
        if not codes:
            raise self._fault("a set of characters is empty", start)
        parts = [match[0] for match in _CHARACTER.finditer(text)]
        ranges, place = [], 0
        while place < len(codes):
            is_range = place + 2 < len(codes) and parts[place + 1] == "-"
            first, last = codes[place], codes[place + 2 if is_range else place]
            if last < first:
                raise self._fault(f"the range {chr(first)!r} to {chr(last)!r} is the wrong way round", start)
            ranges.append((first, last))
            place += 3 if is_range else 1
        return tuple(ranges)

    def _characters(self, text: str, start: int) -> list[int]:
        codes = []
        for match in _CHARACTER.finditer(text):
            code = next((int(digits, 16) for digits in match.groups()[:3] if digits), None)
            letter = match[4]
            if code is None and letter is not None and letter.isalnum() and letter not in _ESCAPES:
                raise self._fault(f"unknown escape {match[0]}", start)
            code = ord(_ESCAPES.get(letter, letter) if letter is not None else match[5]) if code is None else code
            if code > LAST_CHARACTER or 0xD800 <= code <= 0xDFFF:
                raise self._fault(f"{match[0]} is no character", start)
            codes.append(code)
        return codes

    def _is_sign(self, sign: str) -> bool:
        return self._next is not None and self._next["sign"] == sign

    def _advance(self) -> None:
        while True:
            match = _TOKEN.match(self._text, self._place)
            if match is None and self._place < len(self._text):
                raise self._fault(f"unexpected {self._text[self._place : self._place + 10]!r}", self._place)
            self._next = match
            if match is None:
                return
            self._place = match.end()
            if match["blank"] is None:
                return

    def _fault(self, message: str, place: int | None = None) -> GrammarError:
        start = self._next.start() if place is None and self._next is not None else place or 0
        return GrammarError(f"line {self._text.count(chr(10), 0, start) + 1}: {message}")
