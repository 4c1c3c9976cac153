"""Parameters that several commands share, so that they are spelled and explained the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON to standard output; an error is JSON on standard error.")]
SetValues = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set one value, as in kv_cache.block_size=32; wins over variables and file. Repeatable."
    ),
]
