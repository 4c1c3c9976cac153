"""The forms of the `prompt` field -> prompts of the engine, which checks the token ids themselves."""

from __future__ import annotations

from typing import Any

from slotwise.errors import InvalidRequestError

FORMS = "a text, a list of texts, a list of token ids, or a list of lists of token ids"


def split_prompts(prompt: Any) -> list[str | list[Any]]:
    """One entry per completion request, never empty; a list of numbers is one prompt. Raises InvalidRequestError with param `prompt`."""
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise InvalidRequestError(f"prompt must be {FORMS}; got {type(prompt).__name__}.", param="prompt")
    if not prompt:
        raise InvalidRequestError(f"prompt is an empty list; give {FORMS}.", param="prompt")
    for form in (str, list):
        if all(isinstance(item, form) for item in prompt):
            return prompt
    if any(isinstance(item, str | list) for item in prompt):
        raise InvalidRequestError(f"prompt mixes several forms; give {FORMS}.", param="prompt")
    return [prompt]
