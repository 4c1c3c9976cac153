"""The optional suite (`make test-libraries`): stand-ins held against the real packages, as far as they go without a card.

Packages are fetched into build/libraries and never installed into the environment that runs the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "build" / "libraries"


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/libraries" in item.path.as_posix():
            item.add_marker(pytest.mark.libraries)


@pytest.fixture(scope="session")
def fetch():
    """fetch(requirement, *dependencies) -> folder with these packages, installed without what they declare to need."""

    def call(*requirements: str) -> Path:
        folder = BUILD / (requirements[0].replace("=", "") + ("-with-dependencies" if requirements[1:] else ""))
        if not (folder / "done").exists():
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--pre", "--target", str(folder), *requirements]
            subprocess.run(command, check=True)
            (folder / "done").touch()
        return folder

    return call


@pytest.fixture(scope="session")
def flash_attention_source() -> Path:
    """The unpacked source distribution of FlashAttention 2, which also holds 3 (its hopper folder)."""
    version = "2.8.3.post2"
    folder = BUILD / f"flash_attn-{version}"
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
        environ = os.environ | {"FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"}
        subprocess.run([*command, "--dest", str(BUILD), f"flash-attn=={version}"], check=True, env=environ)
        with tarfile.open(BUILD / f"flash_attn-{version}.tar.gz") as packed:
            packed.extractall(BUILD, filter="data")
    return folder
