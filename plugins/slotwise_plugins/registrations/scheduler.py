"""The built-in scheduler policies. Importing this file imports no implementation."""

from __future__ import annotations

from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl
from slotwise_schedulers import options

_API = ">=1.0,<2"


class Fcfs:
    """`fcfs`: first come, first served."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="scheduler",
            name="fcfs",
            implementation="slotwise_schedulers.fcfs:FcfsScheduler",
            api=_API,
            summary="First come, first served; the request admitted last gives way when blocks run out.",
            options=options.FcfsOptions,
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
            api=_API,
            summary="Smallest priority number first, then arrival; with ageing and displacement as options.",
            options=options.PriorityOptions,
        )


class ShortestFirst:
    """`shortest_first`: the least work first."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="scheduler",
            name="shortest_first",
            implementation="slotwise_schedulers.shortest_first:ShortestFirstScheduler",
            api=_API,
            summary="Least remaining work first, prompt and expected output; with ageing, so that long requests do not starve.",
            options=options.ShortestFirstOptions,
        )


class LongestPrefix:
    """`longest_prefix`: the most cached tokens first."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="scheduler",
            name="longest_prefix",
            implementation="slotwise_schedulers.longest_prefix:LongestPrefixScheduler",
            api=_API,
            summary="Most cached tokens first among those that wait longest; who is passed over too often goes next.",
            options=options.LongestPrefixOptions,
        )


class Fair:
    """`fair`: the least served client first."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="scheduler",
            name="fair",
            implementation="slotwise_schedulers.fair:FairScheduler",
            api=_API,
            summary="Least served client first, by virtual token counters with weights for clients, input and output.",
            options=options.FairOptions,
        )


class Deadline:
    """`deadline`: the next token due first."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="scheduler",
            name="deadline",
            implementation="slotwise_schedulers.deadline:DeadlineScheduler",
            api=_API,
            summary="Earliest deadline first, by targets for the first token and between tokens; the one with most slack gives way.",
            options=options.DeadlineOptions,
        )
