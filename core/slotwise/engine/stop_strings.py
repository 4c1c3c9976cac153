"""Stop strings in a stream of text: finding them, and holding back text that may become one.

What this file does not know: tokens and requests. All work is on the new text and the few characters before it.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStringFilter:
    """Text goes in by pieces and comes out up to the first stop string.

    A match must end in the newest searched piece (it may begin in earlier text); among several found in one piece the first in list order
    wins, not the earliest in the text. The text is cut at the match's start, or at its end with `include_in_output`. Unless included, the
    last `longest - 1` characters wait inside, since they may be the start of a match.
    """

    __slots__ = ("_include", "_num_held", "_stops", "_tail", "matched")

    def __init__(self, stops: Sequence[str], *, include_in_output: bool) -> None:
        self._stops = tuple(stops)
        self._include = include_in_output
        self._num_held = max(len(stop) for stop in stops) - 1
        self._tail = ""
        """The last `_num_held` characters of the text so far; not yet given out unless `_include`."""
        self.matched: str | None = None

    def feed(self, piece: str, *, searched: bool = True) -> str:
        """The text that may be shown now. `searched` False: no match may end in this piece (min_tokens), but later ones may begin in it.
        After a match nothing comes out."""
        if self.matched is not None or not piece:
            return ""
        window = self._tail + piece
        if searched:
            for stop in self._stops:
                start = window.find(stop, max(len(self._tail) - len(stop) + 1, 0))
                if start >= 0:
                    self.matched = stop
                    return window[len(self._tail) : start + len(stop)] if self._include else window[:start]
        num_released = max(len(window) - self._num_held, 0)
        self._tail = window[num_released:]
        return piece if self._include else window[:num_released]

    def flush(self) -> str:
        """The text held back, when the output ends without a match."""
        return "" if self._include or self.matched is not None else self._tail
