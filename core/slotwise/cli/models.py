"""`slotwise models`: the models that have a short name, and whether they are installed. Imports neither torch nor transformers."""

from __future__ import annotations

from slotwise.cli.parameters import AsJson
from slotwise.cli.rendering import table, write, write_json, write_text
from slotwise.known_models import KNOWN_MODELS


def models(as_json: AsJson = False) -> None:
    """List the models known by name, and where they are installed."""
    found = {name: known.path() for name, known in KNOWN_MODELS.items()}
    if as_json:
        write_json(
            [
                {
                    "name": known.name,
                    "present": found[known.name] is not None,
                    "path": found[known.name],
                    "summary": known.summary,
                    "license": known.license,
                    "install": known.install_command,
                }
                for known in KNOWN_MODELS.values()
            ]
        )
        return
    rows = [
        (known.name, known.summary, known.license, str(found[known.name] or f"not installed: {known.install_command}"))
        for known in KNOWN_MODELS.values()
    ]
    write(table(("name", "model", "license", "where"), rows))
    write_text("\nA directory with config.json or a .gguf file is a model too: give its path.")
