"""The forms a prompt may have, and whether token ids are ids of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

from slotwise.errors import InvalidRequestError

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, `{"prompt": text}`, `{"prompt_token_ids": ids}`, or both keys together."""

_KEYS = ("prompt", "prompt_token_ids")
MAX_PRIORITY = 2**31


def split_prompt(prompt: Prompt) -> tuple[str | None, list[int] | None]:
    """Text and ids of a prompt, at least one of them. The ids are a copy, not checked yet."""
    if isinstance(prompt, str):
        return prompt, None
    if isinstance(prompt, Mapping):
        return _split_mapping(prompt)
    return None, _as_list(prompt)


def check_token_ids(token_ids: Sequence[Any], vocab_size: int) -> None:
    """Raises InvalidRequestError unless every item is an int (no bool, no float) within 0 .. vocab_size - 1."""
    if set(map(type, token_ids)) <= {int} and min(token_ids, default=0) >= 0 and max(token_ids, default=0) < vocab_size:
        return
    for position, token_id in enumerate(token_ids):
        if type(token_id) is not int:
            raise InvalidRequestError(
                f"Token ids must be integers, but at position {position} is {str(token_id)[:40]!r} of type {type(token_id).__name__}.",
                param="prompt",
            )
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"Token id {token_id} at position {position} is not in the model's vocabulary, which has ids 0 .. {vocab_size - 1}.",
                param="prompt",
            )


def check_labels(*, request_id: Any, client_id: Any, cache_salt: Any, priority: Any) -> None:
    """Raises InvalidRequestError unless what a request is labelled with has the types that queues and caches count on."""
    for name, value in (("request_id", request_id), ("client_id", client_id), ("cache_salt", cache_salt)):
        if value is not None and not isinstance(value, str):
            raise InvalidRequestError(f"{name} must be text, got {type(value).__name__}.", param=name)
        if value is not None and not is_valid_text(value):
            raise InvalidRequestError(f"{name} is not valid text; replace lone surrogates.", param=name)
    if type(priority) is not int or abs(priority) > MAX_PRIORITY:
        shown = str(priority)[:40] if type(priority) is int else type(priority).__name__
        raise InvalidRequestError(f"priority must be an integer within +-2**31, got {shown}.", param="priority")


def is_valid_text(text: str) -> bool:
    """Whether it can be encoded: no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _split_mapping(prompt: Mapping[str, Any]) -> tuple[str | None, list[int] | None]:
    unknown = [key for key in prompt if key not in _KEYS]
    text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if unknown or (text is None and token_ids is None):
        raise InvalidRequestError(f"A prompt mapping has the keys {_KEYS[0]!r} or {_KEYS[1]!r}, got {list(prompt)!r}.", param="prompt")
    if text is not None and not isinstance(text, str):
        raise InvalidRequestError(f"The prompt must be text, got {type(text).__name__}.", param="prompt")
    return text, None if token_ids is None else _as_list(token_ids)


def _as_list(token_ids: Any) -> list[int]:
    if hasattr(token_ids, "tolist"):  # Arrays and tensors.
        token_ids = token_ids.tolist()
    if not isinstance(token_ids, Sequence) or isinstance(token_ids, str | bytes | bytearray):
        raise InvalidRequestError(f"A prompt is text, a list of token ids or a mapping, got {type(token_ids).__name__}.", param="prompt")
    return [int(item) if isinstance(item, Integral) and not isinstance(item, int) else item for item in token_ids]  # numpy's integers
