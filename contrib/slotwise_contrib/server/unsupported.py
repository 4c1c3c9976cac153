"""Known fields that the server cannot honour yet. They are refused unless they ask for nothing: a client must not believe that what it
asked for was done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slotwise_contrib.server.errors import APIError

_HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "function_call": ("none",),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "kv_transfer_params": ({},),
    "length_penalty": (1, 1.0),
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "prompt_embeds": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": (),
    "web_search_options": (),
}
"""Field -> values that ask for nothing, besides null."""

_CHAT_ONLY_REFUSALS: Mapping[str, tuple[Any, ...]] = {"echo": (False,), "prompt": ()}
_COMPLETION_ONLY_REFUSALS: Mapping[str, tuple[Any, ...]] = {"messages": (), "top_logprobs": (), "max_completion_tokens": ()}


def refuse_unsupported(fields: Mapping[str, Any], *, is_chat: bool) -> None:
    """Raises APIError 400 naming the first field that asks for something the server does not do."""
    own = _CHAT_ONLY_REFUSALS if is_chat else _COMPLETION_ONLY_REFUSALS
    for name, value in fields.items():
        harmless = _HARMLESS.get(name, own.get(name))
        if harmless is not None and value is not None and value not in harmless:
            possible = f" Only {' or '.join(map(repr, harmless))} is possible." if harmless else ""
            raise APIError(400, f"{name} is not supported here; leave it out.{possible}", param=name, code="unsupported_parameter")
