"""The command line: `main` is the console script `slotwise`.

Commands are entry points of the group `slotwise.cli`, the project's own like a stranger's; a command's module is imported when
it is called.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 2 invalid input or configuration, 1 any other failure, 130 interrupted.

    argv: arguments without the program's name; `sys.argv[1:]` by default.
    """
    from slotwise.cli.app import run

    return run(argv)
