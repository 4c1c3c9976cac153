"""`slotwise conform SLOT NAME`: does a component keep its slot's contract, case by case?

The cases are those of `slotwise.testing`; this file runs and prints them. What it does not know: any slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotwise.cli.parameters import AsJson
from slotwise.cli.rendering import table, write, write_json, write_text
from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from slotwise.testing.cases import CaseResult
    from slotwise.testing.conformance import ComponentConformance

TIMES = {"backend_us": 0, "reference_us": 0, "ratio": 1}
"""Columns of the timings, and their decimals."""


def conform(  # noqa: PLR0917
    slot: Annotated[str, typer.Argument(help="The slot: attention, scheduler, kv_cache, sampler, logits_processor.")],
    name: Annotated[str, typer.Argument(help="The component's name, as `slotwise plugins` lists it.")],
    options: Annotated[
        list[str] | None, typer.Option("--options", "--option", metavar="KEY=VALUE", help="An option of the component. Repeatable.")
    ] = None,
    cases: Annotated[list[str] | None, typer.Option("--case", metavar="CASE", help="Run this case alone. Repeatable.")] = None,
    examples: Annotated[int | None, typer.Option("--examples", min=1, help="Random runs per case that uses them.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Start of the random runs; one seed always tries the same.")] = 0,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", help="attention, sampler, logits_processor: where to run; by default on the first claimed one that is here."
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one self-contained page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Examine one component case by case: pass, fail, or not claimed. Exit code 1 if a case fails."""
    attributes: dict[str, Any] = {"seed": seed}
    attributes |= {} if examples is None else {"max_examples": examples}
    attributes |= {} if device is None else {"device": device}
    kit = _kit(slot, name, options or (), attributes)
    results = _run(kit, cases or (), show_progress=not as_json)
    from slotwise.testing.report import report_page, report_record

    record = report_record(f"{slot}:{name}", results, _details(slot, kit, results, is_whole=not cases))
    if html is not None:
        html.write_text(report_page(record), encoding="utf-8")
    if as_json:
        write_json(record)
    else:
        _show(record, results)
    if not record["ok"]:
        raise typer.Exit(1)


def _kit(slot: str, name: str, options: Sequence[str], attributes: dict[str, Any]) -> type[ComponentConformance]:
    """Aimed at the component. Raises SlotwiseError if it cannot be examined here."""
    try:
        from slotwise.testing.cases import kit_for
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        raise SlotwiseError('The conformance kit needs hypothesis, which is not installed: pip install "slotwise[testing]".') from error
    from slotwise.testing.component_options import parse_options

    kit = kit_for(slot, name, options=parse_options(options), **attributes)
    kit().require_runnable()
    return kit


def _run(kit: type[ComponentConformance], cases: Sequence[str], *, show_progress: bool) -> list[CaseResult]:
    from rich.console import Console
    from rich.progress import Progress

    from slotwise.testing.cases import case_names, run_cases

    names = _chosen(cases, case_names(kit))
    results = []
    with Progress(console=Console(stderr=True), transient=True, disable=not show_progress) as progress:
        task = progress.add_task("examining", total=len(names))
        for result in run_cases(kit, names):
            results.append(result)
            progress.advance(task)
    return results


def _details(slot: str, kit: type[ComponentConformance], results: Sequence[CaseResult], *, is_whole: bool) -> dict[str, Any]:
    """What the report of this slot has beside the cases; times only where everything was examined."""
    if slot != "attention":
        return {}
    from slotwise.testing.attention_report import details_of

    return details_of(kit, results, with_timings=is_whole)


def _chosen(wanted: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    from slotwise.plugin.suggestions import did_you_mean

    for name in wanted:
        if name not in known:
            raise typer.BadParameter(f'There is no case "{name}".{did_you_mean(name, known)} Cases: {", ".join(known)}.')
    return wanted or known


def _show(record: dict[str, Any], results: Sequence[CaseResult]) -> None:
    write(table(("case", "outcome", "what"), [(result.name, result.outcome.value, _what(result)) for result in results]))
    if record.get("capabilities"):
        claims = [(row["capability"], row["claim"] or "-", row["outcome"]) for row in record["capabilities"]]
        write("", table(("capability", "claimed", "outcome"), claims))
    if record.get("errors_ulps"):
        write("", table(("largest error", "ulps"), [(feature, f"{ulps:.2f}") for feature, ulps in record["errors_ulps"].items()]))
    if record.get("timings"):
        times = [tuple(f"{row[key]:.{digits}f}" for key, digits in TIMES.items()) for row in record["timings"]]
        rows = [(row["shape"], *values) for row, values in zip(record["timings"], times, strict=True)]
        write("", table(("time, for orientation", "us", "reference us", "times as fast"), rows))
    for result in results:
        if result.outcome.value == "fail":
            write_text("\n".join((f"\n{result.name}: {result.message}", *(f"    {step}" for step in result.steps))))
    counts = Counter(result.outcome.value for result in results)
    component = record["component"]
    write_text(f"\n{component}: " + ", ".join(f"{counts[word]} {word}" for word in ("pass", "fail", "not claimed") if counts[word]))


def _what(result: CaseResult) -> str:
    return result.message if result.outcome.value == "not claimed" else result.summary
