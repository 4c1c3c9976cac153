"""What is wrong with a configuration, one record per fault, and the error that carries them all.

Faults are collected instead of raised one by one, so that a file with three typos is repaired in one go. This file does not
know the settings themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slotwise.errors import ConfigError

MAX_QUOTED_LEN = 80
"""Characters of a given text that a message quotes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One fault."""

    key: str | None
    """Dotted path of the setting; None where the fault is not about one."""
    where: str
    """Where it was written: `prod.toml:12`, a variable, a flag."""
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    def to_dict(self) -> dict[str, Any]:
        return {"key": self.key, "where": self.where, "message": self.message}


class InvalidConfigError(ConfigError):
    """A ConfigError that lists every fault found: `problems`. `key` is that of the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems), key=problems[0].key)
        self.problems = tuple(problems)


def raise_problems(problems: Sequence[Problem]) -> None:
    """Raise InvalidConfigError if there are any."""
    if problems:
        raise InvalidConfigError(problems)


def describe_value(value: Any) -> str:
    """A given value with its type, as messages quote it: `text 'false'`, `0 (a whole number)`."""
    if isinstance(value, str):
        return f"text {value!r}" if len(value) <= MAX_QUOTED_LEN else f"text {value[:MAX_QUOTED_LEN]!r}..."
    if isinstance(value, bool):
        return f"{str(value).lower()} (a switch)"
    if isinstance(value, int):
        return f"{value} (a whole number)"
    if isinstance(value, float):
        return f"{value} (a decimal number)"
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "a table"
    return "a list" if isinstance(value, list) else f"{value} ({type(value).__name__})"
