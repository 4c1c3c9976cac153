from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from slotwise.cli.plugins import app
from slotwise.errors import ComponentNotFoundError, ComponentUnavailableError

RECORD = """
from pydantic import Field
from slotwise.config.engine_config import ComponentOptions
from slotwise.interfaces.sampler import SamplerCapabilities
from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl

class Options(ComponentOptions):
    size: int = Field(3, ge=1, description="How [bold]big[/bold].")
    path: str

@hookimpl
def slotwise_component():
    return Component(
        slot="sampler", name="strange", implementation="strange_impl:Strange", api=">=2.0,<3", summary="A stranger.",
        capabilities=SamplerCapabilities(), options=Options, requires=("pluggy>=1",),
    )
"""


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site of two distributions: a sampler `strange`, and a scheduler `torch` whose module cannot be imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, entry in (
        ("strange-dist", "[slotwise.sampler]\nstrange = strange_record\n"),
        ("bad-dist", "[slotwise.scheduler]\ntorch = bad_record\n"),
    ):
        info = tmp_path / f"{name.replace('-', '_')}-0.7.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.7\n")
        info.joinpath("entry_points.txt").write_text(entry)
    tmp_path.joinpath("strange_record.py").write_text(RECORD)
    tmp_path.joinpath("bad_record.py").write_text("raise ImportError('no luck')\n")
    monkeypatch.delitem(sys.modules, "strange_record", raising=False)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def listed(*arguments: str) -> Any:
    return json.loads(run(*arguments).stdout)


def test_lists_every_component_from_metadata_alone(stranger: Path) -> None:
    result = run()
    assert result.exit_code == 0
    (line,) = [text for text in result.stdout.splitlines() if "strange-dist" in text]
    assert line.split() == ["sampler", "strange", "strange-dist", "0.7", "installed"]
    assert "strange_record" not in sys.modules


def test_the_listing_as_json_has_slot_name_distribution_version_and_status(stranger: Path) -> None:
    (found,) = [item for item in listed("--json") if item["distribution"] == "strange-dist"]
    assert {key: found[key] for key in ("slot", "name", "version", "status", "is_builtin")} == {
        "slot": "sampler",
        "name": "strange",
        "version": "0.7",
        "status": "installed",
        "is_builtin": False,
    }


def test_a_clash_is_marked_and_explained_on_stderr(stranger: Path) -> None:
    stranger.joinpath("bad_dist-0.7.dist-info", "entry_points.txt").write_text("[slotwise.sampler]\nstrange = bad_record\n")
    result = run()
    assert sum("conflict" in line for line in result.stdout.splitlines()) == 2
    assert "bad-dist 0.7" in result.stderr
    assert "plugins.block" in result.stderr


@pytest.mark.parametrize("name", ["strange", "sampler:strange"])
def test_show_prints_summary_contract_capabilities_and_options(stranger: Path, name: str) -> None:
    result = run("show", name)
    assert result.exit_code == 0
    for text in (
        "A stranger.",
        ">=2.0,<3",
        "strange_impl:Strange",
        "pluggy>=1",
        "per_request_seeds",
        "integer, at least 1",
        "How [bold]big[/bold].",
        "required",
    ):
        assert text in result.stdout


def test_show_as_json(stranger: Path) -> None:
    found = listed("show", "strange", "--json")
    assert found["api"] == ">=2.0,<3"
    assert found["capabilities"]["devices"] == ["cpu", "cuda"]
    size, path = found["options"]
    assert size == {"name": "size", "type": "integer, at least 1", "default": 3, "required": False, "description": "How [bold]big[/bold]."}
    assert path["required"]


def test_show_of_an_unknown_name_suggests_the_nearest(stranger: Path) -> None:
    error = run("show", "strnge").exception
    assert isinstance(error, ComponentNotFoundError)
    assert 'Did you mean "strange"?' in str(error)


def test_show_of_a_name_in_several_slots_asks_which(stranger: Path) -> None:
    result = run("show", "torch")
    assert result.exit_code == 2
    assert "sampler:torch" in result.stderr
    assert "scheduler:torch" in result.stderr


def test_show_of_a_broken_component_names_the_original_failure(stranger: Path) -> None:
    error = run("show", "scheduler:torch").exception
    assert isinstance(error, ComponentUnavailableError)
    assert "no luck" in str(error)
    assert isinstance(error.__cause__, ImportError)


@pytest.fixture
def only_strangers(stranger: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The built-in components import torch; leave them out of a doctor's round."""
    from slotwise.cli import plugins
    from slotwise.plugin.discovery import discover_entry_points
    from slotwise.plugin.registry import ComponentRegistry

    monkeypatch.setattr(plugins, "ComponentRegistry", lambda: ComponentRegistry(entry_points=discover_entry_points([str(stranger)])))
    return stranger


def test_doctor_reports_each_failure_with_its_cure_and_exits_with_1(only_strangers: Path) -> None:
    result = run("doctor", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["ok"] is False
    by_name = {item["name"]: item for item in found["components"]}
    assert by_name["torch"]["status"] == "broken"
    assert "no luck" in by_name["torch"]["cause"]
    assert "strange_impl" in by_name["strange"]["cause"]
    assert all(item["cure"] for item in by_name.values())


def test_doctor_exits_with_0_when_all_is_in_order(only_strangers: Path) -> None:
    only_strangers.joinpath("bad_dist-0.7.dist-info", "entry_points.txt").unlink()
    only_strangers.joinpath("strange_impl.py").write_text(
        "from slotwise.interfaces.sampler import Sampler, SamplerCapabilities\n"
        "class Strange(Sampler):\n    capabilities = SamplerCapabilities()\n    def sample(self, request): ...\n"
    )
    result = run("doctor")
    assert result.exit_code == 0, result.output
    assert "All 1 components are in order." in result.stdout
    assert " ms" in result.stdout
