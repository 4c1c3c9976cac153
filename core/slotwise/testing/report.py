"""The results of a kit as one record, and as one page that needs nothing beside it.

What this file does not know: any slot; what is particular to one comes in `details`.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from slotwise.testing.cases import CaseResult, Outcome

TEMPLATE: Final = Path(__file__).with_name("report.html.j2")


def report_record(component: str, results: Sequence[CaseResult], details: Mapping[str, Any]) -> dict[str, Any]:
    """What `--json` prints. details: further tables, such as `capabilities`."""
    return {
        "component": component,
        "ok": all(result.outcome is not Outcome.FAILED for result in results),
        "cases": [result.to_dict() for result in results],
        **details,
    }


def report_page(record: Mapping[str, Any]) -> str:
    """The record as HTML, self-contained."""
    from jinja2 import Environment

    counts = Counter(case["outcome"] for case in record["cases"])
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    errors = record.get("errors_ulps", {})
    return template.render(
        component=record["component"],
        counts={"pass": counts["pass"], "fail": counts["fail"], "not_claimed": counts["not claimed"]},
        environment=f"slotwise {version('slotwise')}, torch {version('torch')}, Python {platform.python_version()}",
        cases=record["cases"],
        capabilities=record.get("capabilities", []),
        errors=errors,
        largest=max([*errors.values(), 1e-9]),
        timings=record.get("timings", []),
    )
