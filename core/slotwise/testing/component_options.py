"""`KEY=VALUE` texts as a component's options; the component's own model checks them afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slotwise.config.text_value import json_or_text
from slotwise.errors import ConfigError


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Key -> value, read as JSON where it is valid JSON, else as text. Raises ConfigError for a text without `=`."""
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise ConfigError(f"given {text!r}; accepted: KEY=VALUE, such as displace=true")
        options[key] = json_or_text(value)
    return options
