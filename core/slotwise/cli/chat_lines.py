"""What the user of `slotwise chat` types, line by line; from a pipe, what the pipe holds.

What this file does not know: commands and answers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress

from slotwise.cli.run_view import notice
from slotwise.errors import InvalidRequestError

PROMPT = "> "


def read_lines() -> Iterator[str]:
    """Lines without their ends, until the end of the input (Ctrl-D).

    At the prompt of a terminal Ctrl-C drops what was typed; with a pipe it is a KeyboardInterrupt.
    """
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with suppress(ImportError):  # editing and recall of earlier lines, where Python has it
            import readline  # noqa: F401
    while True:
        try:
            line = _typed_line() if is_terminal else sys.stdin.readline()
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            notice("\n(Ctrl-D or /exit leaves)")
            continue
        except UnicodeDecodeError as error:
            raise InvalidRequestError(f"Standard input is not text in the encoding {sys.stdin.encoding}: {error.reason}.") from error
        if not line:
            return
        yield line.rstrip("\r\n")


def _typed_line() -> str:
    """A line with its end, empty at the end of the input. The prompt goes to stdout only if that is a terminal too."""
    if not sys.stdout.isatty():
        sys.stderr.write(PROMPT)
        sys.stderr.flush()
        return sys.stdin.readline()
    try:
        return input(PROMPT) + "\n"
    except EOFError:
        sys.stdout.write("\n")
        return ""
