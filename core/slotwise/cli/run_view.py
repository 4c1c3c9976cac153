"""What a run shows while it works: progress bars on stderr, generated text on stdout, the summary below it.

Bars are drawn on terminals only. On a terminal control characters of the text are made visible, since a model may write anything;
elsewhere the text is left exactly as it is. What this file does not know: engines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

    from slotwise.cli.generation import Answer

_CONTROL_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_CONTROL_PICTURES |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


class AnswerView:
    """Writes one answer to stdout as it grows."""

    def __init__(self) -> None:
        self._num_shown = 0
        self._at_line_start = True

    def show(self, answer: Answer) -> None:
        """Write what is new. The answer's output carries all text so far."""
        self.write(answer.text[self._num_shown :])

    def write(self, text: str) -> None:
        if text:
            sys.stdout.write(printable(text))
            sys.stdout.flush()
            self._num_shown += len(text)
            self._at_line_start = text.endswith("\n")

    def end(self) -> None:
        """End the last line, unless the text did."""
        if not self._at_line_start:
            sys.stdout.write("\n")
            self._at_line_start = True
        sys.stdout.flush()


def printable(text: str) -> str:
    """The text as stdout can take it."""
    if sys.stdout.isatty():
        text = text.translate(_CONTROL_PICTURES)
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def show_summary(line: str) -> None:
    """The line below the text on a terminal, else on stderr, so that a pipe carries the text alone."""
    typer.secho(line, dim=True, err=not sys.stdout.isatty())


def show_startup(stages: dict[str, float]) -> None:
    """Seconds up to the first token, below the summary."""
    for name, seconds in (*stages.items(), ("in all", sum(stages.values()))):
        show_summary(f"{seconds:7.3f} s  {name}")


def notice(text: str) -> None:
    """Something to tell that is no part of the output."""
    typer.secho(text, dim=True, err=True)


@contextmanager
def loading_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Yields a callback `(stage, done, total)`; until its first call the bar says only that something goes on."""
    with _bar() as progress:
        task = progress.add_task("loading the model", total=None)

        def advance(stage: str, done: int, total: int) -> None:
            progress.update(task, description=f"loading {stage}", completed=done, total=total)

        yield advance


@contextmanager
def prompts_bar(num_prompts: int) -> Iterator[Callable[[], None]]:
    """Yields what to call when a prompt is done."""
    with _bar() as progress:
        task = progress.add_task("generating", total=num_prompts)
        yield lambda: progress.advance(task)


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=not console.is_terminal)
