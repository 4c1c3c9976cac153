"""`slotwise plugins`: what is installed, what one component offers, and whether everything works.

The listing reads metadata alone; `show` loads one record; `doctor` imports everything, each in a process of its own.
What this file does not know: how states come about, how errors become exit codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any

import typer

from slotwise.cli.parameters import AsJson
from slotwise.cli.rendering import table, write, write_json
from slotwise.errors import ComponentNotFoundError
from slotwise.interfaces.version import CONTRACT_VERSIONS
from slotwise.plugin.registry import ComponentRegistry
from slotwise.plugin.states import LoadedComponent, PluginStatus
from slotwise.plugin.suggestions import did_you_mean

app = typer.Typer(help="List, show and check the installed components.", no_args_is_help=False)


@app.callback(invoke_without_command=True)
def list_plugins(context: typer.Context, as_json: AsJson = False) -> None:
    """List the installed components of every slot, without importing any of them."""
    if context.invoked_subcommand is not None:
        return
    states = ComponentRegistry().states()
    if as_json:
        write_json([state.to_dict() for state in states])
        return
    _write_table(
        ("slot", "name", "distribution", "version", "status"),
        [(state.slot, state.name, state.info.distribution, state.info.version, str(state.status)) for state in states],
    )
    for state in states:
        if state.status is PluginStatus.CONFLICT:
            typer.echo(f"{state.cause} {state.cure}", err=True)


@app.command()
def show(name: Annotated[str, typer.Argument(help="NAME or SLOT:NAME.")], as_json: AsJson = False) -> None:
    """Show one component: summary, contract, capabilities, options."""
    registry = ComponentRegistry()
    loaded = registry.get(*_slot_and_name(registry, name))
    facts = _facts(loaded)
    if as_json:
        write_json(facts)
        return
    for key in ("summary", "distribution", "version", "implementation", "api", "contract"):
        typer.echo(f"{key + ':':<16}{facts[key]}")
    typer.echo(f"{'requires:':<16}{', '.join(facts['requires']) or 'nothing more'}")
    if facts["capabilities"]:
        typer.echo("\ncapabilities")
        _write_table(("capability", "value"), [(key, _in_words(value)) for key, value in facts["capabilities"].items()])
    typer.echo(f"\noptions ([{loaded.component.slot}.options])" if facts["options"] else "\ntakes no options")
    if facts["options"]:
        columns = ("name", "type", "default", "description")
        rows = [
            (item["name"], item["type"], "required" if item["required"] else _in_words(item["default"]), item["description"])
            for item in facts["options"]
        ]
        _write_table(columns, rows)


@app.command()
def doctor(
    as_json: AsJson = False,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds one import may take.")] = 60.0,
) -> None:
    """Import every component in a process of its own; report times, clashes, what is missing, cures. Exit code 1 if one is defective."""
    from rich.console import Console
    from rich.progress import Progress

    from slotwise.plugin.doctor import examine

    states = ComponentRegistry().states()
    with Progress(console=Console(stderr=True), transient=True, disable=as_json) as progress:
        task = progress.add_task("importing", total=len(states))
        diagnoses = examine(states, timeout_s=timeout_s, on_done=lambda _: progress.advance(task))
    problems = [item for item in diagnoses if item.is_problem]
    if as_json:
        write_json({"ok": not problems, "components": [item.to_dict() for item in diagnoses]})
    else:
        _write_table(
            ("slot", "name", "distribution", "status", "record", "implementation"),
            [
                (item.slot, item.name, f"{item.distribution} {item.version}", item.status, _ms(item.record_ms), _ms(item.implementation_ms))
                for item in diagnoses
            ],
        )
        for item in diagnoses:
            if item.cause:
                typer.echo(f"{item.slot}:{item.name}: {item.cause}\n  cure: {item.cure}")
        typer.echo(
            f"{len(problems)} of {len(diagnoses)} components need attention."
            if problems
            else f"All {len(diagnoses)} components are in order."
        )
    if problems:
        raise typer.Exit(1)


def _slot_and_name(registry: ComponentRegistry, text: str) -> tuple[str, str]:
    slot, colon, name = text.partition(":")
    if colon:
        return slot, name
    slots = list(dict.fromkeys(state.slot for state in registry.states() if state.name == text))
    if len(slots) > 1:
        raise typer.BadParameter(f'"{text}" is a component of several slots. Say which: {", ".join(f"{slot}:{text}" for slot in slots)}.')
    if not slots:
        names = sorted({state.name for state in registry.states()})
        raise ComponentNotFoundError(
            f'No component is called "{text}".{did_you_mean(text, names)} Installed: {", ".join(names) or "none"}.'
        )
    return slots[0], text


def _facts(loaded: LoadedComponent) -> dict[str, Any]:
    from slotwise.plugin.options import describe_options

    component, info = loaded.component, loaded.info
    return {
        "slot": component.slot,
        "name": component.name,
        "summary": component.summary,
        "distribution": info.distribution,
        "version": info.version,
        "implementation": component.implementation,
        "api": component.api,
        "contract": CONTRACT_VERSIONS[component.slot],
        "requires": list(component.requires),
        "capabilities": _capabilities(component.capabilities),
        "options": [asdict(item) for item in describe_options(component.options)],
    }


def _capabilities(record: Any) -> dict[str, Any]:
    if not is_dataclass(record):
        return {}
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {name: value.name.lower() if isinstance(value, Enum) else value for name, value in values.items()}


def _in_words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_in_words(item)}" for key, item in value.items()) or "none"
    if isinstance(value, (tuple, list)):
        return ", ".join(_in_words(item) for item in value)
    return "any" if value is None else str(value)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"


def _write_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    write(table(columns, rows))
