"""From a plan to figures: which cases are visited how often, and what the slopes are made of."""

from __future__ import annotations

import json

import pytest

from slotwise_contrib.bench.overhead import COLUMNS, Case, CaseResult, OverheadPlan, measure, slopes_of
from slotwise_contrib.bench.sample_statistics import Distribution

PLAN = OverheadPlan(num_running=(2, 4), num_waiting=(0, 5), context_lens=(8, 40), block_size=4, num_rounds=2, num_steps=3)


def result(running: int, waiting: int, context: int, median: float) -> CaseResult:
    case = Case(num_running=running, num_waiting=waiting, context_len=context)
    return CaseResult(case=case, parts={"schedule": Distribution(num_samples=1, median=median, p10=median, p90=median)})


def test_every_case_of_the_plan_is_measured_as_often_as_planned() -> None:
    visits = []
    found = measure(PLAN, lambda: visits.append(None))
    assert len(visits) == PLAN.num_visits == 16
    assert len({case.case for case in found.cases}) == len(found.cases) == 8
    for case in found.cases:
        assert set(case.parts) == set(COLUMNS)
        assert {part.num_samples for part in case.parts.values()} == {PLAN.num_rounds * PLAN.num_steps}
    assert json.loads(json.dumps(found.to_dict()))["cases"][0]["us_per_request"]["core"] > 0


def test_slopes_separate_running_waiting_and_context() -> None:
    """A cost of 7 us a step, 3 us per running request, 2 ns per waiting one, 5 ns per running request and 1000 tokens of context."""
    cases = [
        result(running, waiting, context, 7 + 3 * running + 0.002 * waiting + 5e-6 * running * context)
        for running in (32, 256)
        for waiting in (0, 1000)
        for context in (64, 2048)
    ]
    slopes = slopes_of("schedule", cases)
    assert slopes.running is not None
    assert slopes.running.slope == pytest.approx(3, rel=0.02)
    assert slopes.waiting == pytest.approx(2)
    assert slopes.context == pytest.approx(5)


def test_one_case_has_no_slopes() -> None:
    slopes = slopes_of("schedule", [result(32, 0, 64, 100.0)])
    assert (slopes.running, slopes.exponent, slopes.waiting, slopes.context) == (None, None, None, None)
