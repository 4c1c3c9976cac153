"""Records of the built-in observers. Imports no implementation."""

from __future__ import annotations

from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl
from slotwise_plugins.observers.log_options import LogOptions


class Log:
    """Entry point `log`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        """The record of `log`."""
        return Component(
            slot="observer",
            name="log",
            implementation="slotwise_plugins.observers.log:LogObserver",
            api=">=1.0,<2",
            summary="One log line per so many engine steps.",
            options=LogOptions,
        )
