"""Options of `radix`. Imports no torch."""

from __future__ import annotations

from pydantic import Field

from slotwise.config.engine_config import ComponentOptions


class RadixOptions(ComponentOptions):
    """Options of the `radix` KV cache manager."""

    min_copied_tokens: int = Field(
        1, ge=1, description="Fewest tokens worth copying part of a block for; at the block size or above, hits end at block edges."
    )
