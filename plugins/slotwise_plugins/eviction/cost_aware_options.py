"""Options of `cost_aware`. Imports no torch."""

from __future__ import annotations

from pydantic import Field

from slotwise.config.engine_config import ComponentOptions


class CostAwareOptions(ComponentOptions):
    """Options of the `cost_aware` eviction policy."""

    attention_equals_at: int = Field(
        4096,
        ge=1,
        description="Context length in tokens at which attention is half of a token's work; about 6 times the hidden size.",
    )
