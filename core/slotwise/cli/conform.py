"""`slotwise conform SLOT NAME`: does a component keep its slot's contract, case by case?

The cases are those of `slotwise.testing`; this file runs and prints them. What it does not know: any slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotwise.cli.parameters import AsJson
from slotwise.cli.rendering import table, write, write_json, write_text
from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from slotwise.testing.cases import CaseResult


def conform(  # noqa: PLR0917
    slot: Annotated[str, typer.Argument(help="The slot: scheduler, kv_cache.")],
    name: Annotated[str, typer.Argument(help="The component's name, as `slotwise plugins` lists it.")],
    options: Annotated[
        list[str] | None, typer.Option("--options", "--option", metavar="KEY=VALUE", help="An option of the component. Repeatable.")
    ] = None,
    cases: Annotated[list[str] | None, typer.Option("--case", metavar="CASE", help="Run this case alone. Repeatable.")] = None,
    examples: Annotated[int | None, typer.Option("--examples", min=1, help="Random runs per case that uses them.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Start of the random runs; one seed always tries the same.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Examine one component case by case: pass, fail, or not claimed. Exit code 1 if a case fails."""
    attributes: dict[str, Any] = {"seed": seed} if examples is None else {"seed": seed, "max_examples": examples}
    results = _run(slot, name, options or (), cases or (), attributes, show_progress=not as_json)
    num_failed = sum(result.outcome.value == "fail" for result in results)
    if as_json:
        write_json({"component": f"{slot}:{name}", "ok": not num_failed, "cases": [result.to_dict() for result in results]})
    else:
        _show(f"{slot}:{name}", results)
    if num_failed:
        raise typer.Exit(1)


def _run(
    slot: str, name: str, options: Sequence[str], cases: Sequence[str], attributes: dict[str, Any], *, show_progress: bool
) -> list[CaseResult]:
    try:
        from slotwise.testing.cases import case_names, kit_for, run_cases
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        raise SlotwiseError('The conformance kit needs hypothesis, which is not installed: pip install "slotwise[testing]".') from error
    from rich.console import Console
    from rich.progress import Progress

    from slotwise.testing.component_options import parse_options

    kit = kit_for(slot, name, options=parse_options(options), **attributes)
    kit().implementation()
    names = _chosen(cases, case_names(kit))
    results = []
    with Progress(console=Console(stderr=True), transient=True, disable=not show_progress) as progress:
        task = progress.add_task("examining", total=len(names))
        for result in run_cases(kit, names):
            results.append(result)
            progress.advance(task)
    return results


def _chosen(wanted: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    from slotwise.plugin.suggestions import did_you_mean

    for name in wanted:
        if name not in known:
            raise typer.BadParameter(f'There is no case "{name}".{did_you_mean(name, known)} Cases: {", ".join(known)}.')
    return wanted or known


def _show(component: str, results: Sequence[CaseResult]) -> None:
    write(table(("case", "outcome", "what"), [(result.name, result.outcome.value, _what(result)) for result in results]))
    for result in results:
        if result.outcome.value == "fail":
            write_text("\n".join((f"\n{result.name}: {result.message}", *(f"    {step}" for step in result.steps))))
    counts = Counter(result.outcome.value for result in results)
    write_text(f"\n{component}: " + ", ".join(f"{counts[word]} {word}" for word in ("pass", "fail", "not claimed") if counts[word]))


def _what(result: CaseResult) -> str:
    return result.message if result.outcome.value == "not claimed" else result.summary
