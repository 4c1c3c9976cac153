"""Options of the `log` observer, apart from it so that its record can be made without importing it."""

from __future__ import annotations

from pydantic import Field

from slotwise.config.engine_config import ComponentOptions


class LogOptions(ComponentOptions):
    """`[observers.options.log]`."""

    interval_steps: int = Field(100, ge=1, description="Engine steps per line.")
