"""The built-in proposers. Importing this file imports no implementation."""

from __future__ import annotations

from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl
from slotwise_plugins.proposers.options import DRAFT_MODEL, NGRAM, DraftModelOptions, NgramOptions


class Ngram:
    """`ngram`: prompt lookup."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="proposer",
            name="ngram",
            implementation="slotwise_plugins.proposers.ngram:NgramProposer",
            api=">=1.0,<2",
            summary="Copies what followed an earlier occurrence of the sequence's end.",
            capabilities=NGRAM,
            options=NgramOptions,
        )


class DraftModel:
    """`draft_model`: a small model."""

    @staticmethod
    @hookimpl
    def slotwise_component() -> Component:
        return Component(
            slot="proposer",
            name="draft_model",
            implementation="slotwise_plugins.proposers.draft_model:DraftModelProposer",
            api=">=1.0,<2",
            summary="A small model of the same vocabulary writes the drafts.",
            capabilities=DRAFT_MODEL,
            options=DraftModelOptions,
        )
