"""The root command: `--version`, `--debug`, and subcommands that are imported when they are called.

What this file does not know: any command's name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from slotwise.cli.commands import CommandEntry, discover_commands, only_entry, summary
from slotwise.cli.failures import report, stop_output, usage_exit_code
from slotwise.errors import PluginError
from slotwise.plugin.suggestions import did_you_mean

_COMPLETION_PARAMETERS = ("install_completion", "show_completion")
"""Typer gives them to every app; they belong to the root."""
SUMMARY = "Slotwise: an LLM inference engine made of slots, each filled by name."


class LazyGroup(TyperGroup):
    """A group whose commands are entry points. Help and completion show summaries and import no command."""

    _is_listing = False

    @cached_property
    def _entries(self) -> dict[str, tuple[CommandEntry, ...]]:
        return discover_commands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self._entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entries = self._entries.get(cmd_name)
        if entries is None:
            return None
        if self._is_listing:
            return TyperCommand(cmd_name, help=summary(entries[0]))
        return as_command(cmd_name, only_entry(entries).load())

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._list(super().format_help, ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        return self._list(super().shell_complete, ctx, incomplete)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = list(self._entries)
        if args[0] not in known and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}.{did_you_mean(args[0], known)} Commands: {', '.join(known)}.")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> None:
        """Run the command; what it returns is not an exit code and is dropped."""
        try:
            super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    def _list(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self._is_listing = True
        try:
            return function(*arguments)
        finally:
            self._is_listing = False


def as_command(name: str, loaded: Any) -> Any:
    """What an entry point gave (a Typer app or a function) as a command. Raises PluginError for anything else."""
    if isinstance(loaded, typer.Typer):
        command = typer.main.get_command(loaded)
    elif callable(loaded):
        app = typer.Typer(add_completion=False)
        app.command(name)(loaded)
        command = typer.main.get_command(app)
    else:
        raise PluginError(f"The command {name!r} is a {type(loaded).__name__}; accepted: a function or a typer.Typer.")
    command.name = name
    command.params = [parameter for parameter in command.params if parameter.name not in _COMPLETION_PARAMETERS]
    return command


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False, help=SUMMARY)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"slotwise {metadata.version('slotwise')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error. May stand anywhere.")] = False,
) -> None:
    """Slotwise: an LLM inference engine made of slots, each filled by name."""


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names, return its exit code; see `slotwise.cli.main`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    debug, as_json = "--debug" in arguments[:end], "--json" in arguments[:end]
    arguments = [word for position, word in enumerate(arguments) if position >= end or word != "--debug"]
    command = typer.main.get_command(app)
    try:
        result = command.main(args=arguments, prog_name="slotwise", standalone_mode=not as_json)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        stop_output()
        return 1
    except Exception as error:
        if debug and usage_exit_code(error) is None:
            raise
        return report(error, as_json=as_json)
