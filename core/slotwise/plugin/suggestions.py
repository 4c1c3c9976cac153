"""The nearest known word to a mistyped one. Knows no slots, keys or components."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_CUTOFF = 0.6
"""Least similarity (difflib ratio) worth suggesting: one slip in three letters passes, a different word does not."""


def _folded(word: str) -> str:
    return word.casefold().replace("-", "_")


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like `word`, case and dash/underscore aside; None if none is near. Ties: alphabetical order."""
    by_folded: dict[str, str] = {}
    for candidate in sorted(candidates, reverse=True):
        by_folded[_folded(candidate)] = candidate
    matches = difflib.get_close_matches(_folded(word), sorted(by_folded), n=1, cutoff=_CUTOFF)
    return by_folded[matches[0]] if matches else None


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """`' Did you mean "x"?'` with a leading blank, to be appended to a sentence, or `''`."""
    match = nearest(word, candidates)
    return "" if match is None or match == word else f' Did you mean "{match}"?'
