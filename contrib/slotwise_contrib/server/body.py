"""Request bodies: bytes -> JSON object -> pydantic model, with every refusal an `APIError` that names the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from slotwise_contrib.server.errors import APIError
from slotwise_contrib.server.strict_json import StrictJSONError, parse_json

ModelT = TypeVar("ModelT", bound=BaseModel)


async def read_object(request: Request, *, max_bytes: int) -> dict[str, Any]:
    """The JSON object that the client sent. Raises APIError 413, 415 or 400."""
    _check_content_type(request.headers.get("content-type", ""))
    try:
        value = parse_json(await _read_bytes(request, max_bytes))
    except StrictJSONError as error:
        raise APIError(400, str(error), param=error.field) from error
    if not isinstance(value, dict):
        raise APIError(400, "The body must be a JSON object.")
    return value


def parse_model(model: type[ModelT], fields: Mapping[str, Any]) -> ModelT:
    """Raises APIError 400 that names the first wrong field and all that is wrong with it."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error) from error


def _check_content_type(content_type: str) -> None:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise APIError(415, f"The body must be JSON with Content-Type: application/json; got {media_type or 'no content type'!r}.")


async def _read_bytes(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    too_large = APIError(413, f"The body may have at most {max_bytes} bytes; send less.", code="body_too_large")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > max_bytes:
        raise too_large
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > max_bytes:
            raise too_large
    return bytes(data)


def _refusal(error: ValidationError) -> APIError:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    location = problems[0]["loc"]
    field = str(location[0]) if location else None
    messages = dict.fromkeys(str(problem["msg"]) for problem in problems if problem["loc"][:1] == location[:1])
    where = f"{field}: " if field else ""
    return APIError(400, f"{where}{'; or: '.join(messages)}.", param=field)
