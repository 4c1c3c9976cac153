"""`slotwise bench` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from slotwise.cli.app import run
from slotwise_contrib.bench import command_times, step_clock

SMALL = ["--requests", "2,4", "--waiting", "0", "--contexts", "8", "--rounds", "1", "--steps", "2"]
Outcome = tuple[int, str, str]


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def call(*words: str) -> Outcome:
        code = run(["bench", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_overhead_shows_a_row_per_case_and_how_it_grows(bench: Callable[..., Outcome]) -> None:
    code, out, _ = bench("overhead", *SMALL)
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert [row[:3] for row in rows if row and row[0].isdecimal()] == [["2", "0", "8"], ["4", "0", "8"]]
    assert "us/running" in out


def test_overhead_writes_json(bench: Callable[..., Outcome]) -> None:
    code, out, _ = bench("overhead", *SMALL, "--policy", "priority", "--kv-cache", "no_prefix", "--json")
    found = json.loads(out)
    assert code == 0
    assert [case["num_running"] for case in found["cases"]] == [2, 4]
    assert {slopes["part"] for slopes in found["slopes"]} >= {"schedule", "update", "output", "core"}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--requests", "0"], "--requests"),
        (["--waiting", "-1"], "--waiting"),
        (["--contexts", "64,x"], "--contexts"),
        (["--output-kind", "all"], "--output-kind"),
        (["--policy", "fcsf"], "fcfs"),
        (["--kv-cache", "pagde"], "paged"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_what_can(bench: Callable[..., Outcome], words: list[str], named: str) -> None:
    code, _, err = bench("overhead", *SMALL, *words)
    assert code == 2
    assert named in err


def test_a_busy_machine_is_warned_of(bench: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_clock.StepClock, "lost_share", 0.42)
    assert "42%" in bench("overhead", *SMALL)[2]


def test_plugins_times_each_command_and_lists_what_it_imports(bench: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_times, "MIN_PACKAGE_MS", 0.0)
    code, out, _ = bench("plugins", "--runs", "1", "--json")
    found: dict[str, Any] = {row["command"]: row for row in json.loads(out)}
    assert code == 0
    assert set(found) == set(command_times.COMMANDS)
    assert all(row["wall_ms"]["num_samples"] == 1 for row in found.values())
    for command in ("slotwise --help", "slotwise plugins", "slotwise config check"):
        assert "slotwise" in found[command]["packages"]
        assert not {"torch", "transformers", "numpy", "msgspec"} & set(found[command]["packages"])


def test_import_times_are_summed_by_package() -> None:
    trace = "\n".join(
        [
            "import time: self [us] | cumulative | imported package",
            "import time:      4000 |       4000 |     rich.text",
            "import time:      3500 |       7500 |   rich",
            "import time:      1000 |       1000 | tiny",
            "a line of the program's own",
        ]
    )
    assert command_times.imported_packages(trace) == {"rich": 7.5}


def test_a_command_that_fails_is_an_error_with_its_last_words(bench: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_times, "COMMANDS", {"broken": ["raise SystemExit('no such thing')"]})
    code, _, err = bench("plugins", "--runs", "1")
    assert code == 1
    assert "no such thing" in err
