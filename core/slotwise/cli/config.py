"""`slotwise config ...`: write, check, show and compare configurations. Imports no torch and no component's implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from slotwise.cli.parameters import AsJson, SetValues
from slotwise.cli.rendering import table, value_text, write, write_json, write_text
from slotwise.config.components import check_components, open_registry
from slotwise.config.difference import Difference, Side, differences
from slotwise.config.loading import LoadedConfig, load_config
from slotwise.config.problems import raise_problems
from slotwise.config.template import FORMATS, render_template
from slotwise.config.values import shown_tree, shown_values
from slotwise.errors import ConfigError
from slotwise.plugin.suggestions import did_you_mean

app = typer.Typer(no_args_is_help=True, help="Write, check, show and compare configurations.")

SUFFIXES = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}


@app.command()
def init(
    path: Annotated[Path | None, typer.Argument(help="File to write; standard output if left out.")] = None,
    file_format: Annotated[str | None, typer.Option("--format", help="toml, yaml or json; by default what the file's suffix says.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented file that holds every setting at its default."""
    chosen = _chosen_format(path, file_format)
    text = render_template(chosen)
    if path is None:
        write_json({"format": chosen, "text": text}) if as_json else write_text(text)
        return
    _write_new(path, text, force)
    if as_json:
        write_json({"format": chosen, "path": str(path)})
    else:
        write_text(f"Wrote {path}. Check it with `slotwise config check {path}`.")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="File to check.")],
    set_values: SetValues = None,
    as_json: AsJson = False,
) -> None:
    """Check keys, values, component names and their options; variables in force are checked too."""
    loaded = _load(file, set_values)
    raise_problems(check_components(loaded.config, loaded.origins))
    if as_json:
        write_json({"ok": True, "file": str(file), "dropped": [item.to_dict() for item in loaded.origins.dropped]})
    else:
        write_text("\n".join([f"{file}: ok", *_notes(loaded)]))


@app.command()
def show(
    file: Annotated[Path | None, typer.Argument(help="File to resolve; the defaults if left out.")] = None,
    set_values: SetValues = None,
    as_json: AsJson = False,
) -> None:
    """Show every value in force, and where it comes from."""
    loaded = _load(file, set_values)
    if as_json:
        write_json(resolved_record(loaded))
        return
    rows = [(key, value_text(value), str(loaded.origins[key])) for key, value in shown_values(loaded.config).items()]
    write(table(("key", "value", "from"), rows), *_notes(loaded))


@app.command()
def schema(as_json: AsJson = True) -> None:  # noqa: ARG001 - always JSON; the flag is accepted as everywhere
    """Print the JSON Schema for editors, with the options of every installed component."""
    from slotwise.config.json_schema import config_schema

    write_json(config_schema(open_registry(load_config(environ={}).config)))


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(help="First file.")],
    b: Annotated[Path, typer.Argument(help="Second file.")],
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if they differ.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the keys whose values differ between two files; environment variables are left aside."""
    found = differences(load_config(a, environ={}), load_config(b, environ={}))
    if as_json:
        write_json({"a": str(a), "b": str(b), "differences": [item.to_dict() for item in found]})
    elif found:
        write(table(("key", str(a), "from", str(b), "from"), [_difference_row(item) for item in found]))
    else:
        write_text("No difference.")
    if found and exit_code:
        raise typer.Exit(1)


def resolved_record(loaded: LoadedConfig) -> dict[str, Any]:
    """What `config show --json` prints."""
    return {
        "config": shown_tree(loaded.config),
        "origins": {key: origin.to_dict() for key, origin in loaded.origins.items()},
        "dropped": [item.to_dict() for item in loaded.origins.dropped],
    }


def _load(file: Path | None, set_values: list[str] | None) -> LoadedConfig:
    return load_config(file, set_values=set_values or ())


def _notes(loaded: LoadedConfig) -> list[str]:
    return [f"Note: {item}" for item in loaded.origins.dropped]


def _difference_row(item: Difference) -> tuple[str, ...]:
    return (item.key, *_cells(item.a), *_cells(item.b))


def _cells(side: Side) -> tuple[str, str]:
    return (value_text(side.value) if side.is_set else "-", str(side.origin) if side.origin else "-")


def _chosen_format(path: Path | None, file_format: str | None) -> str:
    by_suffix = None if path is None else SUFFIXES.get(path.suffix.lower())
    if file_format is not None and file_format not in FORMATS:
        raise ConfigError(f"--format: given {file_format!r}; accepted: {', '.join(FORMATS)}.{did_you_mean(file_format, list(FORMATS))}")
    if path is not None and by_suffix is None:
        raise ConfigError(f"{path}: the format goes by the suffix; {path.suffix!r} is none of {', '.join(SUFFIXES)}")
    if file_format is not None and by_suffix is not None and file_format != by_suffix:
        raise ConfigError(f"{path} has the suffix of {by_suffix}, --format says {file_format}: make them agree")
    return file_format or by_suffix or "toml"


def _write_new(path: Path, text: str, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already; give another name, or --force to replace it") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
