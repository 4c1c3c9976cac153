from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from slotwise.cli import main
from slotwise.cli.app import as_command
from slotwise.cli.commands import CommandEntry, discover_commands, only_entry, summary
from slotwise.errors import ComponentConflictError, ConfigError, EngineDeadError, InvalidRequestError, PluginError

HEAVY = '''"""Module documentation."""
import heavy_library_that_is_not_installed
def run(as_json: bool = False):
    """Does heavy work.

    More text.
    """
'''
LIGHT = """
import os, sys
from typing import Annotated
import typer
from slotwise.errors import *

app = typer.Typer(help="Fails as told.")

@app.command()
def fail(kind: str, as_json: Annotated[bool, typer.Option("--json")] = False):
    faults = {
        "config": ConfigError("bad key", key="a.b"), "request": InvalidRequestError("bad prompt", param="prompt"),
        "dead": EngineDeadError("gone"), "interrupt": KeyboardInterrupt(), "bug": RuntimeError("a bug"), "disk": OSError(28, "disk full"),
        "pipe": BrokenPipeError(), "abort": typer.Abort(), "exit": typer.Exit(7), "system": SystemExit(5),
    }
    raise faults[kind]

@app.command()
def answer(as_json: Annotated[bool, typer.Option("--json")] = False):
    return 42
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`install("dist", "1.0", {"name": "module:object"}, module="source")`: a distribution with commands, on `sys.path`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name: str, version: str, commands: dict[str, str], **modules: str) -> None:
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = [f"{command} = {value}" for command, value in commands.items()]
        (folder / "entry_points.txt").write_text("[slotwise.cli]\n" + "\n".join(lines) + "\n")
        for module, source in modules.items():
            (tmp_path / f"{module}.py").write_text(source)

    return make


@pytest.fixture
def failing(install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    install("faulty", "1.0", {"faulty": "faulty_commands:app"}, faulty_commands=LIGHT)
    monkeypatch.delitem(sys.modules, "faulty_commands", raising=False)


def test_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"slotwise {version('slotwise')}\n"


def test_help_lists_strangers_commands_without_importing_them(install: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    install("stranger", "2.0", {"heavy": "heavy_commands:run", "lost": "no_such_module:run"}, heavy_commands=HEAVY)
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "Does heavy work." in shown
    assert "From stranger 2.0." in shown
    assert "config" in shown
    assert "heavy_commands" not in sys.modules


def test_command_that_cannot_be_imported_is_an_error_naming_its_distribution(
    install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    install("stranger", "2.0", {"heavy": "heavy_commands:run"}, heavy_commands=HEAVY)
    assert main(["heavy"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("Error: The command 'heavy' of stranger 2.0 cannot be imported")
    assert "heavy_library_that_is_not_installed" in error
    assert "Traceback" not in error


def test_command_registered_twice_names_both_distributions(install: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    install("one", "1", {"twice": "heavy_commands:run"}, heavy_commands=HEAVY)
    install("two", "2", {"twice": "heavy_commands:run"})
    assert main(["twice"]) == 1
    assert "one 1 and two 2" in capsys.readouterr().err


def test_a_distribution_found_twice_counts_once(install: Callable[..., None], tmp_path: Path) -> None:
    install("one", "1", {"twice": "x:y"})
    link = tmp_path.parent / "link"
    link.symlink_to(tmp_path)
    assert len(discover_commands([str(tmp_path), str(link), str(tmp_path)])["twice"]) == 1


def test_unknown_command_gets_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["confg"]) == 2
    assert 'Did you mean "config"?' in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("arguments", [[], ["config"]])
def test_group_without_command_shows_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(arguments)
    assert "Usage: slotwise" in "".join(capsys.readouterr())


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize(
    ("kind", "code", "text"),
    [
        ("config", 2, "Error: bad key\n"),
        ("request", 2, "Error: bad prompt\n"),
        ("dead", 1, "Error: gone\n"),
        ("disk", 1, "Error: [Errno 28] disk full\n"),
        ("interrupt", 130, ""),
        ("exit", 7, ""),
        ("system", 5, ""),
    ],
)
def test_failure_is_one_message_and_an_exit_code(kind: str, code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faulty", "fail", kind]) == code
    assert capsys.readouterr().err == text


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize(
    ("kind", "code", "record"),
    [
        ("config", 2, {"type": "ConfigError", "message": "bad key", "key": "a.b"}),
        ("request", 2, {"type": "InvalidRequestError", "message": "bad prompt", "param": "prompt"}),
        ("dead", 1, {"type": "EngineDeadError", "message": "gone"}),
        ("bug", 1, {"type": "RuntimeError", "message": "a bug"}),
    ],
)
def test_failure_with_json_is_an_object_on_stderr(kind: str, code: int, record: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faulty", "fail", kind, "--json"]) == code
    captured = capsys.readouterr()
    assert json.loads(captured.err) == {"error": record}
    assert captured.out == ""


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize(("kind", "code"), [("interrupt", 130), ("exit", 7), ("system", 5)])
def test_exit_codes_are_the_same_with_json(kind: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faulty", "fail", kind, "--json"]) == code
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("arguments", [["faulty", "fail", "--json"], ["faulty", "fail", "config", "--json", "--no-such-option"]])
def test_wrong_usage_with_json_is_an_object_too(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert json.loads(capsys.readouterr().err)["error"]["message"]


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("arguments", [["faulty", "answer"], ["faulty", "answer", "--json"]])
def test_what_a_command_returns_is_no_exit_code(arguments: list[str]) -> None:
    assert main(arguments) == 0


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("arguments", [["--debug", "faulty", "fail", "config"], ["faulty", "fail", "config", "--debug"]])
def test_debug_lets_the_traceback_through(arguments: list[str]) -> None:
    with pytest.raises(ConfigError, match="bad key"):
        main(arguments)


@pytest.mark.usefixtures("failing")
def test_our_own_bug_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faulty", "fail", "bug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_reader_that_goes_away_is_no_complaint() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        code = "import sys; from slotwise.cli import main; sys.exit(main(['config', 'init']))"
        done = subprocess.run([sys.executable, "-c", code], stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(write_end)
    assert done.stderr == ""
    assert done.returncode == 1


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["config", "--help"], ["config", "schema"], ["explain", "--help"]])
def test_light_commands_import_no_torch(arguments: list[str]) -> None:
    code = (
        "import sys; from slotwise.cli import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'transformers', 'fastapi'} & set(sys.modules); sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, "imported" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize(
    ("source", "value", "text"),
    [
        ('def f():\n    """One.\n\n    Two."""\n', "m_summary:f", "One."),
        ('"""Module."""\ndef f(): pass\n', "m_summary:f", "Module."),
        ('import typer\napp = typer.Typer(add_completion=False, help="Helps.")\n', "m_summary:app", "Helps."),
        ('import typer\napp: object = typer.Typer(help="Helps.")\n', "m_summary:app", "Helps."),
        ("app = object()\n", "m_summary:app", "From d 1."),
        ("def f(:\n", "m_summary:f", "From d 1."),
        ("", "no.such.module:f", "From d 1."),
    ],
)
def test_summary_is_read_from_the_text_of_the_module(
    source: str, value: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m_summary.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert summary(CommandEntry(name="x", value=value, distribution="d", version="1")) == text


def test_summary_runs_no_parent_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "p_summary" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "p_summary" / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "m.py").write_text('def f():\n    """Deep."""\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    assert summary(CommandEntry(name="x", value="p_summary.inner.m:f", distribution="d", version="1")) == "Deep."


def test_entry_point_may_be_a_function_an_app_or_is_refused() -> None:
    def hello(name: str = "you") -> None:
        typer.echo(name)

    app: Any = typer.Typer()
    app.command()(hello)
    for loaded in (hello, app):
        command = as_command("hello", loaded)
        assert command.name == "hello"
        assert [parameter.name for parameter in command.params] == ["name"]
    with pytest.raises(PluginError, match="accepted: a function"):
        as_command("hello", 3)


def test_only_entry_refuses_two() -> None:
    entries = [CommandEntry(name="x", value="m:f", distribution=name, version="1") for name in ("a", "b")]
    assert only_entry(entries[:1]) is entries[0]
    with pytest.raises(ComponentConflictError, match="a 1 and b 1"):
        only_entry(entries)


def test_exit_codes_by_kind_of_error() -> None:
    from slotwise.cli.failures import exit_code
    from slotwise.errors import ComponentNotFoundError, ModelLoadError

    invalid = [ConfigError("x"), InvalidRequestError("x"), ComponentNotFoundError("x")]
    other = [EngineDeadError("x"), ModelLoadError("x"), PluginError("x"), RuntimeError("x")]
    assert [exit_code(error) for error in invalid] == [2, 2, 2]
    assert [exit_code(error) for error in other] == [1, 1, 1, 1]
