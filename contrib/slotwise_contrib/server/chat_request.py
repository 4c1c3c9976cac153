"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from slotwise_contrib.server.request_fields import GenerationRequest


class ChatRequest(GenerationRequest):
    """The next message of a conversation."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = Field(None, description="The newer name of max_tokens, which it overrides.")
    logprobs: bool | None = Field(None, description="Whether logprobs are reported.")
    top_logprobs: int | None = Field(None, description="Most likely tokens reported per position.")
    add_generation_prompt: bool | None = Field(None, description="End the prompt with the start of an answer; true by default.")
    continue_final_message: bool | None = Field(None, description="Go on with the last message instead of answering it.")
