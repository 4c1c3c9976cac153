"""An `Explanation` as JSON and as tables: pure functions over records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from slotwise.cli.deviation import LayerChoice
from slotwise.cli.explanation import Explanation
from slotwise.cli.failures import error_record
from slotwise.cli.rendering import table
from slotwise.engine.attention_report import layer_span
from slotwise.plugin.resolution import Candidate, Resolution

if TYPE_CHECKING:
    from rich.console import RenderableType


def explanation_record(explanation: Explanation) -> dict[str, Any]:
    """Plain data; what `explain --json` prints."""
    model = None if explanation.model is None else asdict(explanation.model)
    if model is not None:
        model["num_layers"] = len(model.pop("layers", ()))
    return {
        "slots": [resolution.to_dict() for resolution in explanation.resolutions],
        "layers": [layer._asdict() for layer in explanation.layers],
        "deviations": [deviation._asdict() for deviation in explanation.deviations],
        "machine": None if explanation.machine is None else asdict(explanation.machine),
        "model": model,
        "dropped": [item.to_dict() for item in explanation.dropped],
        "error": None if explanation.failure is None else error_record(explanation.failure),
    }


def render_explanation(explanation: Explanation) -> Iterator[RenderableType]:
    """Lines and tables, in reading order."""
    if explanation.model is not None:
        yield f"model    {explanation.model.architecture}, {explanation.model.dtype}, {len(explanation.model.layers)} attention layers"
    if explanation.machine is not None:
        yield f"machine  {explanation.machine.device_type}: {explanation.machine.device_name}"
    yield table(("slot", "asked", "chosen", "why"), [choice_row(resolution) for resolution in explanation.resolutions])
    for resolution in explanation.resolutions:
        yield ""
        yield f"{resolution.where}: {len(resolution.candidates)} candidate{'' if len(resolution.candidates) == 1 else 's'}"
        yield table(
            ("  ", "name", "distribution", "verdict", "wanted", "offered", "change"),
            [row for candidate in resolution.candidates for row in candidate_rows(candidate, resolution)],
        )
    if explanation.layers:
        yield ""
        columns = ("layers", "kind", "prefill", "decode", "decided by", "why not the others")
        yield table(columns, layer_rows(explanation.layers, explanation.resolutions))
    for deviation in explanation.deviations:
        yield f"Deviates: {deviation}"
    for item in explanation.dropped:
        yield f"Note: {item}"


def choice_row(resolution: Resolution) -> tuple[str, ...]:
    """Slot, what was asked, what was chosen, why."""
    return (resolution.where, resolution.asked, resolution.chosen or "-", resolution.reason)


def candidate_rows(candidate: Candidate, resolution: Resolution) -> list[tuple[str, ...]]:
    """One row per refusal, or one that says how the candidate stands."""
    head = ("*" if candidate.chosen else "", candidate.name, f"{candidate.distribution} {candidate.version}".strip())
    if not candidate.refusals:
        return [(*head, _verdict(candidate, resolution), "", "", "")]
    blank = ("", "", "")
    return [
        (*(head if number == 0 else blank), f"refused: {refusal.predicate}", refusal.wanted, refusal.offered, refusal.change)
        for number, refusal in enumerate(candidate.refusals)
    ]


def layer_rows(layers: Iterable[LayerChoice], resolutions: Iterable[Resolution]) -> list[tuple[str, ...]]:
    """One row per run of layers that are served alike, for the same reasons."""
    traces = {resolution.where: resolution for resolution in resolutions if resolution.slot == "attention"}
    rows: list[tuple[str, ...]] = []
    for (_, prefill, decode, *decided_by), run in groupby(layers, key=lambda layer: layer[1:]):
        members = list(run)
        parts = tuple(dict.fromkeys(decided_by))
        others = {part: _others(traces[part]) for part in parts if part in traces}
        why_not = "; ".join(text if len(others) == 1 else f"{part}: {text}" for part, text in others.items())
        rows.append((layer_span([layer.name for layer in members]), members[0].kind, prefill, decode, ", ".join(parts), why_not))
    return rows


def _others(resolution: Resolution) -> str:
    """What kept each candidate that was not taken from the layers of a part, in a word or two; the part's own table has the details."""
    said = []
    for candidate in resolution.candidates:
        if not candidate.chosen:
            refused = ", ".join(refusal.predicate for refusal in candidate.refusals)
            said.append(f"{candidate.name} ({refused or _standing(candidate, resolution)})")
    return ", ".join(said)


def _standing(candidate: Candidate, resolution: Resolution) -> str:
    return f"preference {candidate.preference}" if resolution.asked == "auto" else "not named"


def _verdict(candidate: Candidate, resolution: Resolution) -> str:
    if candidate.chosen:
        return "chosen"
    if resolution.chosen is None:
        return "not weighed"
    rank = "" if candidate.preference is None else f", preference {candidate.preference}"
    return f"fits{rank}"
