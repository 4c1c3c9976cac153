"""The kit as pytest meets it: `--component`, and a stranger's short test file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

STRANGER = """\
from slotwise.interfaces.scheduler import SchedulerPolicy, Victim
from slotwise.testing import SchedulerPolicyConformance


class Newest(SchedulerPolicy):
    def order_key(self, request, now):
        return -request.arrival_index

    def choose_victim(self, running, blocked):
        return Victim(request=running[0], reason="admitted first")


class TestNewest(SchedulerPolicyConformance):
    component, max_examples, max_overtakes = Newest, 2, {max_overtakes}
"""


@pytest.fixture
def run_pytest(tmp_path: Path):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTEST_ADDOPTS": "", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120)

    return run


def test_the_cases_of_installed_components_are_collected_from_the_package(run_pytest):
    options = ("--component", "scheduler:priority", "--component-option", "displace=true")
    result = run_pytest("--pyargs", "slotwise.testing", *options, "-vv", "-k", "victim or own")
    assert result.returncode == 0, result.stdout
    assert "test_conforms[scheduler:priority-victim_is_one_of_the_running] PASSED" in result.stdout
    assert "orders by order_key alone" in result.stdout
    assert "1 passed, 1 skipped" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--component SLOT:NAME"),
        (("--component", "fcfs"), "write SLOT:NAME"),
        (("--component", "tokenizer:fast"), "no conformance kit for the slot"),
    ],
)
def test_a_component_that_cannot_be_examined_is_a_usage_error(run_pytest, arguments, message):
    result = run_pytest("--pyargs", "slotwise.testing", *arguments)
    assert result.returncode not in (0, 1)
    assert message in result.stdout + result.stderr


@pytest.mark.parametrize(("max_overtakes", "outcome"), [(None, "11 passed, 4 skipped"), (0, "1 failed, 11 passed, 3 skipped")])
def test_a_strangers_test_file_runs_every_case_on_its_class(run_pytest, tmp_path, max_overtakes, outcome):
    text = STRANGER.format(max_overtakes=max_overtakes)
    assert len(text.splitlines()) <= 14
    tmp_path.joinpath("test_newest.py").write_text(text)
    result = run_pytest("test_newest.py")
    assert outcome in result.stdout, result.stdout


def test_attention_backends_are_examined_the_same_way(run_pytest):
    done = run_pytest("--pyargs", "slotwise.testing", "--component", "attention:torch_sdpa", "-k", "decodes or sinks or graphs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert "does not claim graph capture" in done.stdout
