"""Where prompts come from: arguments, a text file with one per line, a JSONL file, standard input.

What this file does not know: tokens, chat templates, engines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotwise.errors import ConfigError, InvalidRequestError
from slotwise.plugin.suggestions import did_you_mean

TEXT, JSONL = "text", "jsonl"
FORMATS = (TEXT, JSONL)
STDIN = "-"
_KEYS = ("prompt", "prompt_token_ids", "messages")


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptEntry:
    """One prompt; exactly one of text, token ids and messages is given."""

    where: str
    """For messages to the user: `prompt 2`, `prompts.txt:17`."""
    text: str | None = None
    token_ids: list[int] | None = None
    messages: list[Mapping[str, Any]] | None = None

    def as_chat(self, system: str | None) -> PromptEntry:
        """A text becomes the one user message of a conversation. Messages get the system message unless they begin with one; token ids stay
        as they are."""
        if self.text is not None:
            return PromptEntry(where=self.where, messages=conversation(system, [{"role": "user", "content": self.text}]))
        return self if self.messages is None else PromptEntry(where=self.where, messages=conversation(system, self.messages))

    def to_dict(self) -> dict[str, Any]:
        """What was asked, under the key that a JSONL file uses."""
        asked = {"prompt": self.text, "prompt_token_ids": self.token_ids, "messages": self.messages}
        return {key: value for key, value in asked.items() if value is not None}

    def check_text(self) -> None:
        """Raise InvalidRequestError for lone surrogates: what is no UTF-8 on a command line or in a pipe comes in as such."""
        try:
            json.dumps(self.to_dict(), ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"{self.where} is not valid text: it holds {error.object[error.start]!a}; give it in UTF-8.", param="prompt"
            ) from error

    @property
    def title(self) -> str:
        """One line that tells this prompt from others."""
        text = self.text
        if text is None and self.messages and isinstance(self.messages[-1], Mapping):
            text = str(self.messages[-1].get("content", ""))
        line = " ".join((text or "").split()) or f"{len(self.token_ids or ())} token ids"
        return line if len(line) <= 60 else f"{line[:57]}..."


def conversation(system: str | None, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages below a system message, unless they begin with one of their own."""
    has_own = bool(messages) and isinstance(messages[0], Mapping) and messages[0].get("role") == "system"
    return [*messages] if system is None or has_own else [{"role": "system", "content": system}, *messages]


def collect_prompts(arguments: Sequence[str], file: str | None, file_format: str | None = None) -> list[PromptEntry]:
    """Prompts of the command line, then those of the file, in order.

    file: a path, or `-` for standard input. file_format: `text` or `jsonl`; by default jsonl for the suffixes .jsonl and .ndjson, text for
    others. Raises ConfigError for a file that cannot be read or when there is no prompt, InvalidRequestError for a line that is no prompt.
    """
    entries = [PromptEntry(where=f"prompt {number}", text=text) for number, text in enumerate(arguments, 1)]
    if file is not None:
        entries.extend(_from_file(file, _checked_format(file, file_format)))
    elif file_format is not None:
        raise ConfigError("--format says how --file is to be read, but there is no --file; give one or leave --format out.")
    if not entries:
        where = "is needed: give it as an argument, or a file of prompts with --file" if file is None else f"was found in {_name(file)}"
        raise ConfigError(f"{'A' if file is None else 'No'} prompt {where}.")
    for entry in entries:
        entry.check_text()
    return entries


def _checked_format(file: str, file_format: str | None) -> str:
    if file_format is None:
        return JSONL if Path(file).suffix.lower() in {".jsonl", ".ndjson"} else TEXT
    if file_format not in FORMATS:
        raise ConfigError(f"--format: given {file_format!r}; accepted: {', '.join(FORMATS)}.{did_you_mean(file_format, list(FORMATS))}")
    return file_format


def _from_file(file: str, file_format: str) -> Iterator[PromptEntry]:
    for number, line in _lines(file):
        where = f"{_name(file)}:{number}"
        yield PromptEntry(where=where, text=line) if file_format == TEXT else _from_json(where, line)


def _lines(file: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers. Only a line feed ends a line: JSON strings may hold other separators."""
    try:
        data = sys.stdin.read() if file == STDIN else Path(file).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{_name(file)} is not UTF-8 text ({error.reason} at byte {error.start}); convert it.") from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}. Give --file a text or JSONL file, or - for standard input.") from error
    lines: Iterable[str] = (line.removesuffix("\r") for line in data.split("\n"))
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def _from_json(where: str, line: str) -> PromptEntry:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{where} is not JSON: {error}.", param="prompt") from error
    value = {"prompt": value} if isinstance(value, str) else value
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in _KEYS:
        raise InvalidRequestError(
            f'{where} must be a string or an object with exactly one of {", ".join(_KEYS)}, such as {{"prompt": "Hello"}}; '
            f"got {line if len(line) <= 60 else line[:57] + '...'}",
            param="prompt",
        )
    key, content = next(iter(value.items()))
    if isinstance(content, str) and key == "prompt":
        return PromptEntry(where=where, text=content)
    if not isinstance(content, list) or key == "prompt":
        raise InvalidRequestError(f"{where}: {key} must be {'a string' if key == 'prompt' else 'a list'}.", param=key)
    if key == "messages":
        return PromptEntry(where=where, messages=content)
    return PromptEntry(where=where, token_ids=content)


def _name(file: str) -> str:
    return "standard input" if file == STDIN else file
