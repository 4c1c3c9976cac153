"""Writing results: JSON, and tables whose text is data and never markup."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def write_json(value: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def write_text(text: str) -> None:
    """Plain text on stdout."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def write(*renderables: RenderableType) -> None:
    """Tables and lines on stdout. Where stdout is no terminal lines are as long as they need, so that other programs can read them."""
    from rich.console import Console

    console = Console(file=sys.stdout, markup=False, highlight=False, soft_wrap=not sys.stdout.isatty())
    if not console.is_terminal:
        console.width = 10_000
    for renderable in renderables:
        console.print(renderable)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> Table:
    """A table without frame."""
    from rich.table import Table
    from rich.text import Text

    made = Table(*headers, title=Text(title) if title else None, box=None, title_justify="left", pad_edge=False, header_style="bold")
    for row in rows:
        made.add_row(*(Text(cell, overflow="fold") for cell in row))
    return made


def value_text(value: Any) -> str:
    """A configuration value as tables print it."""
    return json.dumps(value, ensure_ascii=False, default=str)
