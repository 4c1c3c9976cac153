"""Grammars of `gbnf`, in the spelling of each grammar engine. What this file does not know: the engines.

llguidance splits text into lexemes by the longest match before it parses, and would so lose outputs of the grammar. Therefore a grammar
without recursion becomes one lexeme, and in one with recursion every lexeme is a single character.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from slotwise_plugins.grammar.gbnf import ROOT, Characters, Choice, Item, Repeat, Rule, Text

_ANY = r"/(.|\n)/"


def lark_of(rules: dict[str, Choice]) -> str:
    """The Lark dialect of llguidance, without its header; the start rule is `start`."""
    is_recursive = _is_recursive(rules)
    letter, leaf = ("r", _lark_characters) if is_recursive else ("R", _lark_text)
    names = {name: f"{letter}{index}" for index, name in enumerate(rules)}
    used = _reachable(rules)
    lines = [f"{names[name]}: {_spelled(rules[name], names, leaf)}" for name in rules if name in used]
    return "\n".join([f"start: {names[ROOT]}", *lines])


def xgrammar_of(rules: dict[str, Choice]) -> str:
    """The EBNF of xgrammar; the start rule is `root`."""
    names = {name: f"r{index}" for index, name in enumerate(rules)} | {ROOT: ROOT}
    return "\n".join(f"{names[name]} ::= {_spelled(choice, names, _xgrammar_leaf)}" for name, choice in rules.items())


def xgrammar_text(text: str) -> str:
    """A literal of xgrammar's EBNF."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return "\\" + letter
    return letter if letter.isprintable() else f"\\U{ord(letter):08x}"


def _spelled(choice: Choice, names: dict[str, str], leaf: Callable[[Text | Characters], str]) -> str:
    return " | ".join(" ".join(_item(item, names, leaf) for item in items) or '""' for items in choice.alternatives)


def _item(item: Item, names: dict[str, str], leaf: Callable[[Text | Characters], str]) -> str:
    if isinstance(item, Rule):
        return names[item.name]
    if isinstance(item, Choice):
        return f"({_spelled(item, names, leaf)})"
    if not isinstance(item, Repeat):
        return leaf(item)
    inner = f"({_item(item.item, names, leaf)})"
    if item.most is None:
        return inner + ("*" if item.least == 0 else "+" if item.least == 1 else f"{{{item.least},}}")
    return f"{inner}{{{item.least},{item.most}}}" if item.most else '""'


def _lark_text(item: Text | Characters) -> str:
    if isinstance(item, Text):
        return json.dumps(item.text)
    if not item.ranges:
        return _ANY
    ranges = "".join(f"\\u{{{first:x}}}-\\u{{{last:x}}}" for first, last in item.ranges)
    return f"/[{'^' * item.is_negated}{ranges}]/"


def _lark_characters(item: Text | Characters) -> str:
    if isinstance(item, Text) and item.text:
        return " ".join(json.dumps(letter) for letter in item.text)
    return _lark_text(item)


def _xgrammar_leaf(item: Text | Characters) -> str:
    if isinstance(item, Text):
        return xgrammar_text(item.text)
    ranges = item.ranges or ((0, 0x10FFFF),)
    is_negated = item.is_negated and bool(item.ranges)
    spelled = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)
    return f"[{'^' * is_negated}{spelled}]"


def _is_recursive(rules: dict[str, Choice]) -> bool:
    """Whether some rule that `root` reaches reaches itself."""
    done: set[str] = set()
    path: dict[str, Iterator[str]] = {ROOT: _names(rules[ROOT])}
    while path:
        name, names = next(reversed(path.items()))
        following = next(names, None)
        if following is None:
            del path[name]
            done.add(name)
        elif following in path:
            return True
        elif following not in done:
            path[following] = _names(rules[following])
    return False


def _reachable(rules: dict[str, Choice]) -> set[str]:
    found, waiting = {ROOT}, [ROOT]
    while waiting:
        fresh = set(_names(rules[waiting.pop()])) - found
        found |= fresh
        waiting += fresh
    return found


def _names(item: Item) -> Iterator[str]:
    """Of the rules in it."""
    if isinstance(item, Rule):
        yield item.name
    elif isinstance(item, Repeat):
        yield from _names(item.item)
    elif isinstance(item, Choice):
        for items in item.alternatives:
            for inner in items:
                yield from _names(inner)
