"""Runs a function on a thread with a large stack: grammar engines recurse along the references of a schema, and a stack that overflows ends
the process.

What this file does not know: grammars.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_Result = TypeVar("_Result")
_BASE_BYTES = 16 << 20
_BYTES_PER_TEXT_BYTE = 1024
"""llguidance 1.9 was seen to need 230: about 8 KiB a level, and no level takes less than 35 bytes of text."""
_PAGE_BYTES = 4096
_setting = threading.Lock()


def on_deep_stack(work: Callable[[], _Result], text_bytes: int) -> _Result:
    """What the function returns or raises. text_bytes: length of the text that it recurses over; memory is taken only as far as it does."""
    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    stack_bytes = _BASE_BYTES + text_bytes * _BYTES_PER_TEXT_BYTE
    with _setting:
        before = threading.stack_size(stack_bytes - stack_bytes % _PAGE_BYTES)
        try:
            threading.Thread(target=run, name="slotwise-grammar-deep", daemon=True).start()
        finally:
            threading.stack_size(before)
    return future.result()
