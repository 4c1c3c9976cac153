"""Options of `thinking_budget`."""

from __future__ import annotations

from pydantic import Field

from slotwise.config.engine_config import ComponentOptions


class ThinkingBudgetOptions(ComponentOptions):
    """The markers that a model puts around its thoughts."""

    start: str = Field("<think>", min_length=1, description="Text that opens thoughts.")
    end: str = Field("</think>", min_length=1, description="Text that closes them.")
