"""The built-in grammar components. Importing this file imports no grammar engine."""

from __future__ import annotations

from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl
from slotwise_plugins.grammar.options import LLGUIDANCE, XGRAMMAR, GrammarOptions


class Llguidance:
    """`llguidance`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="grammar",
            name="llguidance",
            implementation="slotwise_plugins.grammar.llguidance_backend:LlguidanceBackend",
            api=">=1.0,<2",
            summary="All forms; quick to compile; refuses keywords of JSON Schema that it does not implement.",
            capabilities=LLGUIDANCE,
            options=GrammarOptions,
            requires=("llguidance>=1.8",),
        )


class Xgrammar:
    """`xgrammar`."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="grammar",
            name="xgrammar",
            implementation="slotwise_plugins.grammar.xgrammar_backend:XgrammarBackend",
            api=">=1.0,<2",
            summary="All forms; masks made beforehand; the extra `slotwise[xgrammar]`.",
            capabilities=XGRAMMAR,
            options=GrammarOptions,
            requires=("xgrammar>=0.2.4",),
        )
