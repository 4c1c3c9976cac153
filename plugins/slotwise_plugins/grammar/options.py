"""Options and claims of the grammar components. Imports no grammar engine."""

from __future__ import annotations

from pydantic import Field

from slotwise.config.engine_config import ComponentOptions
from slotwise.interfaces.grammar import GrammarCapabilities

LLGUIDANCE = GrammarCapabilities(preference={"cpu": 20, "cuda": 20})
XGRAMMAR = GrammarCapabilities(preference={"cpu": 10, "cuda": 10})


class GrammarOptions(ComponentOptions):
    """Of both."""

    max_whitespace: int | None = Field(
        None, ge=1, description="JSON: most blanks and newlines in a row where any are allowed; by default no limit."
    )
    max_text_bytes: int = Field(250_000, ge=1, description="Longer schemas, expressions and grammars are refused.")
