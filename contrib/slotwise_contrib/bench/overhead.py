"""What the engine spends per step around the model, for several numbers of running and waiting requests and several context lengths.

Cases are visited in turn, a few steps each, round after round, so that whatever the machine does meanwhile meets all of them alike. Each
visit begins with steps that do not count, since requests that came or went change the batch.

What this file does not know: how results are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from slotwise.sampling_params import OutputKind
from slotwise_contrib.bench.components import MeasuredComponents
from slotwise_contrib.bench.engine_rig import CORE_PARTS, PARTS, EngineRig, RigSettings
from slotwise_contrib.bench.sample_statistics import Distribution, Line, distribution, fit_line, growth_exponent
from slotwise_contrib.bench.step_clock import garbage_collection_off

NUM_WARM_UP_STEPS = 3
COLUMNS = (*PARTS, "core", "all")
"""`core` = schedule + update + output, what other engines report; `all` = one whole step, with text instead of without."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OverheadPlan:
    """What is measured."""

    num_running: Sequence[int] = (32, 256, 2048)
    num_waiting: Sequence[int] = (0, 1000)
    context_lens: Sequence[int] = (64, 2048)
    policy: str = "fcfs"
    kv_cache: str = "paged"
    block_size: int = 16
    output_kind: OutputKind = OutputKind.CUMULATIVE
    num_rounds: int = 5
    num_steps: int = 12
    """Steps that count, per visit."""

    @property
    def num_visits(self) -> int:
        return self.num_rounds * len(self.num_running) * len(self.num_waiting) * len(self.context_lens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One point of the plan."""

    num_running: int
    num_waiting: int
    context_len: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseResult:
    """CPU microseconds per step."""

    case: Case
    parts: dict[str, Distribution]
    """By the names in `COLUMNS`."""

    def per_request(self, part: str) -> float:
        """Median CPU microseconds per running request and step."""
        return self.parts[part].median / self.case.num_running


@dataclass(frozen=True, kw_only=True, slots=True)
class Slopes:
    """How one part's cost grows."""

    part: str
    running: Line | None
    """Microseconds per running request, and per step whatever runs."""
    exponent: float | None
    """Cost ~ running^exponent between the fewest and the most: 1 = linear."""
    waiting: float | None
    """Nanoseconds per waiting request and step."""
    context: float | None
    """Nanoseconds per running request and step, per 1000 tokens of context."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OverheadResult:
    """All of one run."""

    cases: list[CaseResult]
    slopes: list[Slopes]
    lost_share: float
    """Share of the measured wall time in which the thread had no core."""

    def to_dict(self) -> dict[str, Any]:
        cases = [
            {**asdict(found.case), "us_per_step": {name: asdict(value) for name, value in found.parts.items()}}
            | {"us_per_request": {name: found.per_request(name) for name in found.parts}}
            for found in self.cases
        ]
        return {"cases": cases, "slopes": [asdict(slopes) for slopes in self.slopes], "lost_share": self.lost_share}


def measure(plan: OverheadPlan, on_visit: Callable[[], None] = lambda: None) -> OverheadResult:
    """Build one engine per (running, context) and step them in turn. `on_visit` is called `plan.num_visits` times."""
    components = MeasuredComponents(policy=plan.policy, kv_cache=plan.kv_cache)
    most_steps = plan.num_rounds * len(plan.num_waiting) * (plan.num_steps + NUM_WARM_UP_STEPS)
    rigs = {
        (running, context): EngineRig(
            RigSettings(
                num_running=running,
                context_len=context,
                num_steps=most_steps,
                block_size=plan.block_size,
                output_kind=plan.output_kind,
            ),
            components,
        )
        for running, context in product(plan.num_running, plan.context_lens)
    }
    samples: dict[Case, list[dict[str, int]]] = {}
    with garbage_collection_off():
        for _, waiting in product(range(plan.num_rounds), plan.num_waiting):
            for (running, context), rig in rigs.items():
                case = Case(num_running=running, num_waiting=waiting, context_len=context)
                samples.setdefault(case, []).extend(_visit(rig, waiting, plan.num_steps))
                on_visit()
    cases = [CaseResult(case=case, parts=_parts(steps)) for case, steps in samples.items()]
    lost_share = max(rig.clock.lost_share for rig in rigs.values())
    return OverheadResult(cases=cases, slopes=[slopes_of(part, cases) for part in COLUMNS], lost_share=lost_share)


def _visit(rig: EngineRig, num_waiting: int, num_steps: int) -> list[dict[str, int]]:
    rig.set_waiting(num_waiting)
    for _ in range(NUM_WARM_UP_STEPS):
        rig.step()
    return [rig.step() for _ in range(num_steps)]


def _parts(steps: Sequence[dict[str, int]]) -> dict[str, Distribution]:
    columns = {part: [step[part] for step in steps] for part in PARTS}
    columns["core"] = [sum(step[part] for part in CORE_PARTS) for step in steps]
    columns["all"] = [sum(step[part] for part in PARTS if part != "output") for step in steps]
    return {name: distribution([nanoseconds / 1e3 for nanoseconds in values]) for name, values in columns.items()}


def slopes_of(part: str, cases: Sequence[CaseResult]) -> Slopes:
    """Waiting and context slopes are medians over pairs of cases that differ in nothing else."""
    points = [(float(found.case.num_running), found.parts[part].median) for found in cases]
    waiting, context = [], []
    for low, high in product(cases, cases):
        a, b, difference = low.case, high.case, high.parts[part].median - low.parts[part].median
        if a.num_running == b.num_running and a.context_len == b.context_len and a.num_waiting < b.num_waiting:
            waiting.append(difference * 1e3 / (b.num_waiting - a.num_waiting))
        if a.num_running == b.num_running and a.num_waiting == b.num_waiting and a.context_len < b.context_len:
            context.append(difference * 1e6 / (a.num_running * (b.context_len - a.context_len)))
    return Slopes(
        part=part,
        running=fit_line(points),
        exponent=growth_exponent(points),
        waiting=distribution(waiting).median if waiting else None,
        context=distribution(context).median if context else None,
    )
