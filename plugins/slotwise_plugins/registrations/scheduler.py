"""The built-in scheduler policies. Importing this file imports no implementation."""

from __future__ import annotations

from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl


class Fcfs:
    """`fcfs`: first come, first served."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="scheduler",
            name="fcfs",
            implementation="slotwise_schedulers.fcfs:FcfsScheduler",
            api=">=1.0,<2",
            summary="First come, first served; the request admitted last gives way when blocks run out.",
        )


class Priority:
    """`priority`: the most urgent first."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="scheduler",
            name="priority",
            implementation="slotwise_schedulers.priority:PriorityScheduler",
            api=">=1.0,<2",
            summary="Smallest priority number first, then arrival; the least urgent, latest request gives way when blocks run out.",
        )
