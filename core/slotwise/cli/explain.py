"""`slotwise explain CONFIG`: every slot, what was chosen, who else was there, and what spoke against each.

The choice is made by the engine's own plan, so what is explained is what will run. This file only prints it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slotwise.cli.parameters import AsJson, SetValues
from slotwise.cli.rendering import write, write_json

_STRICT = (
    "Exit with 1 if a slot stays open, or if a layer deviates: another backend serves it than the one named, or `auto` could not take the "
    "one it prefers on this device. Also make a broken plug-in an error, chosen or not."
)


def explain(
    config: Annotated[Path, typer.Argument(help="Configuration file.")],
    set_values: SetValues = None,
    strict: Annotated[bool, typer.Option("--strict", help=_STRICT)] = False,
    as_json: AsJson = False,
) -> None:
    """Show for every slot what is chosen, the candidates, and each refusal with what was wanted and offered."""
    from slotwise.cli.explanation import explain_config
    from slotwise.cli.explanation_view import explanation_record, render_explanation
    from slotwise.config.loading import load_config

    overrides = {"plugins": {"strict": True}} if strict else {}
    loaded = load_config(config, set_values=set_values or (), overrides=overrides)
    explanation = explain_config(loaded.config, loaded.origins)
    if as_json:
        write_json(explanation_record(explanation))
    else:
        write(*render_explanation(explanation))
    if explanation.failure is not None:
        raise explanation.failure
    if strict and (explanation.has_open_slots or explanation.deviations):
        raise typer.Exit(1)
