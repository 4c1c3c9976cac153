"""Errors as a user of the command line meets them: one message on stderr, or one JSON object there, and an exit code.

0 done; 2 invalid input or configuration; 1 any other failure; 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

import typer

from slotwise.errors import ComponentNotFoundError, ConfigError, InvalidRequestError, ModelNotFoundError, ResolutionError, SlotwiseError

INVALID_INPUT = (ConfigError, InvalidRequestError, ComponentNotFoundError, ResolutionError, ModelNotFoundError)


def exit_code(error: BaseException) -> int:
    """The exit code for an error."""
    usage = usage_exit_code(error)
    if usage is not None:
        return usage
    return 2 if isinstance(error, INVALID_INPUT) else 1


def usage_exit_code(error: BaseException) -> int | None:
    """The exit code of a wrong command line (unknown option, missing argument), None for other errors."""
    code = getattr(error, "exit_code", None)
    return code if isinstance(code, int) and hasattr(error, "format_message") else None


def report(error: BaseException, *, as_json: bool) -> int:
    """Write the error to stderr and return the exit code. An error that is nobody's mistake but ours keeps its traceback."""
    if as_json:
        sys.stderr.write(json.dumps({"error": error_record(error)}, ensure_ascii=False) + "\n")
    elif isinstance(error, SlotwiseError | OSError):
        sys.stderr.write(f"Error: {error}\n")
    elif isinstance(error, typer.Abort):
        sys.stderr.write("Aborted.\n")
    else:
        traceback.print_exception(error)
    return exit_code(error)


def error_record(error: BaseException) -> dict[str, Any]:
    """The error as plain data: type, message, and what else it names."""
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    record: dict[str, Any] = {"type": type(error).__name__, "message": message}
    for name in ("key", "param"):
        if getattr(error, name, None) is not None and isinstance(error, SlotwiseError):
            record[name] = getattr(error, name)
    problems = getattr(error, "problems", None)
    if problems is not None:
        record["problems"] = [problem.to_dict() for problem in problems]
    return record


def stop_output() -> None:
    """The reader of stdout went away: send what is still buffered nowhere, so that nothing complains at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
