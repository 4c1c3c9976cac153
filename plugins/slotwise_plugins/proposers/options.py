"""Options and capabilities of the built-in proposers. Imports no torch."""

from __future__ import annotations

from pydantic import Field, model_validator

from slotwise.config.engine_config import ComponentOptions
from slotwise.interfaces.proposer import ProposerCapabilities

NGRAM = ProposerCapabilities()
DRAFT_MODEL = ProposerCapabilities(devices=("cpu", "cuda"))


class NgramOptions(ComponentOptions):
    """How long the text must repeat before it is copied from."""

    max_match: int = Field(4, ge=1, description="Longest end of the sequence that is looked up in it.")
    min_match: int = Field(2, ge=1, description="Shortest one.")

    @model_validator(mode="after")
    def _check_order(self) -> NgramOptions:
        if self.min_match > self.max_match:
            raise ValueError(f"min_match is {self.min_match}, more than max_match, which is {self.max_match}")
        return self


class DraftModelOptions(ComponentOptions):
    """The small model."""

    model: str = Field(description="A directory, a .gguf file or a known name, as `model.source`; of the same vocabulary.")
    sample: bool = Field(
        True, description="Draw drafts of random requests from the small model's distribution; false = always its most likely token."
    )
