"""How long commands that must answer at once take, each in a process of its own, and which packages they import.

What this file does not know: what the commands do.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slotwise.errors import SlotwiseError
from slotwise_contrib.bench.sample_statistics import Distribution, distribution

RUN = "import sys; from slotwise.cli import main; sys.exit(main(sys.argv[1:]))"
COMMANDS = {
    "python -c pass": ["pass"],
    "slotwise --help": [RUN, "--help"],
    "slotwise plugins": [RUN, "plugins"],
    "slotwise config check": [RUN, "config", "check", "{config}"],
}
"""What is measured -> what Python is told to run, after `-c`."""
NUM_COMMANDS = len(COMMANDS)
MIN_PACKAGE_MS = 5.0
"""Packages that take less to import are not listed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandResult:
    """One command's times, milliseconds per process."""

    command: str
    wall_ms: Distribution
    cpu_ms: Distribution
    """User and system time; what remains of the wall time on a busy machine is waiting."""
    packages: dict[str, float]
    """Top-level package -> milliseconds of import, with tracing on, the slowest first."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_commands(num_runs: int, on_run: Callable[[], None] = lambda: None) -> list[CommandResult]:
    """Every command `num_runs` times, in turn, after one run that does not count. Raises SlotwiseError if one fails."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "empty.toml")
        config.touch()
        commands = {name: [sys.executable, "-c", *(word.format(config=config) for word in words)] for name, words in COMMANDS.items()}
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for round_index in range(num_runs + 1):
            for name, command in commands.items():
                times = _timed(command)
                if round_index:
                    samples[name].append(times)
                    on_run()
        traces = {name: _run([sys.executable, "-X", "importtime", *command[1:]]).stderr for name, command in commands.items()}
    return [
        CommandResult(
            command=name,
            wall_ms=distribution([wall for wall, _ in times]),
            cpu_ms=distribution([cpu for _, cpu in times]),
            packages=imported_packages(traces[name]),
        )
        for name, times in samples.items()
    ]


def measure_startup(source: str, arm: str, *, num_runs: int, advance: Callable[[], None]) -> dict[str, Distribution]:
    """Seconds by stage of `slotwise generate`, in processes one after the other, after one that does not count. Raises SlotwiseError."""
    settings = [word for pair in arm.split(",") if pair.strip() for word in ("--set", pair.strip())]
    command = [sys.executable, "-c", RUN, "generate", "-m", source, "Hello", "--max-tokens", "1", "--startup", "--json", *settings]
    samples: dict[str, list[float]] = {}
    for run in range(num_runs + 1):
        stages: dict[str, float] = json.loads(_run(command).stdout)["startup_s"]
        for name, seconds in {**stages, "in all": sum(stages.values())}.items():
            samples.setdefault(name, []).extend([seconds] if run else [])
        advance()
    return {name: distribution(seconds) for name, seconds in samples.items()}


def _timed(command: Sequence[str]) -> tuple[float, float]:
    """Wall and CPU milliseconds of one process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    _run(command)
    end, after = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return (end - start) * 1e3, (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "120"}, stdin=subprocess.DEVNULL
    )
    if result.returncode:
        raise SlotwiseError(f"`{' '.join(command)}` ended with exit code {result.returncode}: {result.stderr.strip()[-500:]}")
    return result


def imported_packages(trace: str) -> dict[str, float]:
    """What `python -X importtime` wrote -> milliseconds per top-level package, own modules summed, from MIN_PACKAGE_MS on."""
    found: dict[str, float] = {}
    for line in trace.splitlines():
        own, _, rest = line.removeprefix("import time:").partition("|")
        if not line.startswith("import time:") or not own.strip().isdigit():
            continue
        package = rest.partition("|")[2].strip().partition(".")[0]
        found[package] = found.get(package, 0.0) + int(own) / 1e3
    return {name: ms for name, ms in sorted(found.items(), key=lambda item: -item[1]) if ms >= MIN_PACKAGE_MS}
