"""The built wheel holds what it must, declares what it needs, and answers in an environment where nothing else is."""

from __future__ import annotations

import json
import re
import tomllib
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [Path(package).name for package in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]

IMPORT_EVERYTHING = f"""
import importlib, pkgutil
for package in {PACKAGES}:
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if module.name.startswith("slotwise.testing."):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            is_extra = error.name == "triton" and (".triton_" in module.name) or error.name == "xgrammar" and ".xgrammar_" in module.name
            if not is_extra:
                raise
"""
"""The modules of the conformance kit need the extra `testing`, those of Triton kernels the extra `triton`, that of xgrammar the one of its
name; nothing else does."""


def test_wheel_holds_the_six_typed_packages_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert {name.split("/")[0] for name in names} == {*PACKAGES, f"slotwise-{PYPROJECT['project']['version']}.dist-info"}


def test_wheel_carries_licence_and_every_entry_point(wheel):
    with zipfile.ZipFile(wheel) as archive:
        info = next(name for name in archive.namelist() if name.endswith("/METADATA")).removesuffix("METADATA")
        licence = archive.read(info + "licenses/LICENSE").decode()
        written = ConfigParser(delimiters=("=",))
        written.read_string(archive.read(info + "entry_points.txt").decode())
    assert "Apache License" in licence
    for group, entries in PYPROJECT["project"]["entry-points"].items():
        assert dict(written[group]) == entries


def test_version_is_the_projects(run_clean):
    result = run_clean("slotwise", "--version")
    assert result.returncode == 0, result.stderr
    assert re.search(rf"\b{re.escape(PYPROJECT['project']['version'])}$", result.stdout.strip())


def test_plugins_lists_every_built_in_component(run_clean):
    result = run_clean("slotwise", "plugins", "--json")
    assert result.returncode == 0, result.stderr
    listed = {(item["slot"], item["name"]) for item in json.loads(result.stdout) if item["distribution"] == "slotwise"}
    groups = {
        group: entries for group, entries in PYPROJECT["project"]["entry-points"].items() if group not in ("slotwise.cli", "pytest11")
    }
    assert listed == {(group.removeprefix("slotwise."), name) for group, entries in groups.items() for name in entries}


def test_every_module_imports_with_the_declared_dependencies_only(run_clean):
    result = run_clean("python", "-c", IMPORT_EVERYTHING)
    assert result.returncode == 0, result.stderr


def test_the_kit_names_the_extra_it_needs(run_clean):
    assert run_clean("python", "-c", "import slotwise.testing.pytest_plugin").returncode == 0
    result = run_clean("slotwise", "conform", "scheduler", "fcfs")
    assert result.returncode == 1
    assert 'pip install "slotwise[testing]"' in result.stderr
