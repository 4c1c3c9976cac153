"""What a case can say: nothing (it passed), that a rule was broken, or that the component never claimed to follow it.

The kit raises instead of using `assert`, so that it judges the same under `python -O`, and outside pytest.
"""

from __future__ import annotations

import unittest


class ConformanceError(AssertionError):
    """The component broke a rule of its slot's contract."""


class NotClaimedError(unittest.SkipTest):
    """The case is about something the component does not offer. pytest reports it as skipped, `slotwise conform` as not claimed."""


def require(condition: object, broken_rule: str) -> None:
    """Raise ConformanceError saying `broken_rule` unless `condition` holds."""
    if not condition:
        raise ConformanceError(broken_rule)
