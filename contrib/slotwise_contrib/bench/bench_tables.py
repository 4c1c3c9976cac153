"""The results of the benchmarks as tables. What this file does not know: how they were measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.cli.rendering import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from slotwise_contrib.bench.command_times import CommandResult
    from slotwise_contrib.bench.overhead import OverheadResult
    from slotwise_contrib.bench.sample_statistics import Distribution


def overhead_tables(result: OverheadResult) -> list[Table]:
    """One row per case, in microseconds of CPU per running request and step; then how each part grows."""
    names = list(result.cases[0].parts)
    cases = [
        (
            str(found.case.num_running),
            str(found.case.num_waiting),
            str(found.case.context_len),
            *(f"{found.per_request(name):.2f}" for name in names),
            _spread(found.parts["core"], found.case.num_running),
        )
        for found in result.cases
    ]
    slopes = [
        (
            slopes.part,
            _number(slopes.running.slope if slopes.running else None, 2),
            _number(slopes.running.intercept if slopes.running else None, 0),
            _number(slopes.exponent, 2),
            _number(slopes.waiting, 1),
            _number(slopes.context, 0),
        )
        for slopes in result.slopes
    ]
    return [
        table(("running", "waiting", "context", *names, "core p10-p90"), cases, title="CPU us per running request and step (median)"),
        table(
            ("part", "us/running", "us/step", "exponent", "ns/waiting", "ns/running per 1000 context"),
            slopes,
            title="\nHow it grows per step",
        ),
    ]


def command_table(results: Sequence[CommandResult]) -> Table:
    """One row per command, in milliseconds."""
    rows = [
        (
            found.command,
            f"{found.wall_ms.median:.0f}",
            _spread(found.wall_ms, 1, digits=0),
            f"{found.cpu_ms.median:.0f}",
            ", ".join(f"{name} {ms:.0f}" for name, ms in found.packages.items()),
        )
        for found in results
    ]
    return table(("command", "wall ms", "p10-p90", "CPU ms", "imports (ms)"), rows)


def _spread(values: Distribution, divisor: int, digits: int = 2) -> str:
    return f"{values.p10 / divisor:.{digits}f}-{values.p90 / divisor:.{digits}f}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
