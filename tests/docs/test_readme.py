"""What the README shows works as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def block(language: str) -> str:
    return re.search(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)[1]


@pytest.mark.slow
def test_python_example_answers_prompts_and_chat(tmp_path):
    small_pool = os.environ | {"SLOTWISE_KV_CACHE__NUM_BLOCKS": "64"}
    command = [sys.executable, "-c", block("python")]
    result = subprocess.run(command, cwd=tmp_path, env=small_pool, capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == 0, result.stderr
    france, once, *reply = result.stdout.splitlines()
    assert "Paris" in france
    assert france.endswith("length 5 0")
    assert once.split()[-3] == "length"
    assert "".join(reply).strip()


def test_config_example_passes_the_check(tmp_path):
    (tmp_path / "prod.toml").write_text(block("toml"))
    command = [str(Path(sys.executable).with_name("slotwise")), "config", "check", "prod.toml"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_python_and_config_examples_stay_short():
    assert len([line for line in block("python").splitlines() if line]) <= 10
    assert len([line for line in block("toml").splitlines() if line]) <= 12


def test_entry_point_example_names_a_real_group():
    example = tomllib.loads(re.search(r"^   ```toml\n(.*?)^   ```", README, re.DOTALL | re.MULTILINE)[1])
    real = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert set(example["project"]["entry-points"]) <= set(real)


def test_make_commands_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = README + (ROOT / "CONTRIBUTING.md").read_text()
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", pages, re.MULTILINE)) <= targets
