"""The pytest plug-in: `pytest --pyargs slotwise.testing --component SLOT:NAME` runs the kit on installed components.

Every pytest run of the environment imports this file, so it imports nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--component` and `--component-option`; they matter to the cases of `slotwise.testing` alone."""
    group = parser.getgroup("slotwise", "conformance of Slotwise components")
    group.addoption(
        "--component",
        action="append",
        default=[],
        metavar="SLOT:NAME",
        help="Component that the cases of slotwise.testing examine, as in scheduler:fcfs. Repeatable.",
    )
    group.addoption(
        "--component-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="An option of that component, as in its [slot.options]. Repeatable.",
    )
