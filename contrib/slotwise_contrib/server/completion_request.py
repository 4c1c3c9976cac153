"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from slotwise_contrib.server.request_fields import GenerationRequest


class CompletionRequest(GenerationRequest):
    """Text completion."""

    prompt: Any = Field(..., description="A text, a list of texts, a list of token ids, or a list of such lists.")
    echo: bool | None = Field(None, description="Begin the text with the prompt.")
    logprobs: int | None = Field(None, description="Most likely tokens reported per position.")
    add_special_tokens: bool | None = Field(None, description="Whether the tokenizer adds BOS and the like; true by default.")
