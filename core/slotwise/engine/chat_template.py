"""Chat messages -> prompt, through the tokenizer's chat template. The template writes every special token itself, so exactly its own BOS
stands in the prompt. Library and server both come through here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from slotwise.errors import InvalidRequestError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def apply_chat_template(
    tokenizer: PreTrainedTokenizerBase | None,
    messages: Sequence[Mapping[str, Any]],
    *,
    chat_template: str | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """Token ids of the rendered conversation. Arguments and errors as for `render_chat_template`."""
    text = render_chat_template(
        tokenizer,
        messages,
        chat_template=chat_template,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        tools=tools,
        template_kwargs=template_kwargs,
    )
    return encode_rendered_chat(tokenizer, text)


def encode_rendered_chat(tokenizer: PreTrainedTokenizerBase | None, text: str) -> list[int]:
    """Token ids of a text that a chat template wrote: no special token is added."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"The messages are not valid text: {error}. Replace lone surrogates.", param="messages") from error
    return list(_required(tokenizer).encode(text, add_special_tokens=False, verbose=False))


def render_chat_template(
    tokenizer: PreTrainedTokenizerBase | None,
    messages: Sequence[Mapping[str, Any]],
    *,
    chat_template: str | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """The conversation as text, special tokens written out.

    messages: mappings with `role` and `content`, content a string or a list of `{"type": "text", "text": ...}` parts. chat_template: Jinja
    source that replaces the tokenizer's. continue_final_message: leave the last message open, for the model to go on with it.
    template_kwargs: further variables of the template. Raises InvalidRequestError with param `messages`.
    """
    tokenizer = _required(tokenizer)
    if chat_template is None and not tokenizer.chat_template:
        raise InvalidRequestError(
            "This model's tokenizer has no chat template; set model.chat_template to the path of a Jinja file, or send a plain prompt.",
            param="messages",
        )
    if continue_final_message and add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude each other; set add_generation_prompt to false.",
            param="continue_final_message",
        )
    conversation = _checked(messages)
    try:
        text = tokenizer.apply_chat_template(
            conversation,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=None if tools is None else [dict(tool) for tool in tools],
            tokenize=False,
            **(template_kwargs or {}),
        )
    except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        # Templates refuse what they cannot render (roles out of turn) by raising, or fail on what they did not expect.
        raise InvalidRequestError(f"The chat template does not take these messages: {error}", param="messages") from error
    return str(text)


def _required(tokenizer: PreTrainedTokenizerBase | None) -> PreTrainedTokenizerBase:
    if tokenizer is None:
        raise InvalidRequestError("Chat needs a tokenizer, but this engine has none; give prompt_token_ids.", param="messages")
    return tokenizer


def _checked(messages: Any) -> list[dict[str, Any]]:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequestError(f"messages must be a list of messages, got {type(messages).__name__}.", param="messages")
    if not messages:
        raise InvalidRequestError("messages is empty; give at least one message.", param="messages")
    return [_checked_message(index, message) for index, message in enumerate(messages)]


def _checked_message(index: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(
            f"messages[{index}] must be an object with role and content, got {type(message).__name__}.", param="messages"
        )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequestError(f"messages[{index}] needs a role such as 'user', 'assistant' or 'system'.", param="messages")
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return dict(message)
    return {**message, "content": content if isinstance(content, str) else _joined_parts(index, content)}


def _joined_parts(index: int, content: Any) -> str:
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidRequestError(f"messages[{index}].content must be text or a list of text parts.", param="messages")
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise InvalidRequestError(
                f'messages[{index}].content has a part of type {kind!r}; only {{"type": "text", "text": ...}} is understood.',
                param="messages",
            )
        texts.append(part["text"])
    return "".join(texts)
