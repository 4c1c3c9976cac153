"""The pool of threads: every chunk once, whatever the number of threads, from several callers, and after a fork."""

from __future__ import annotations

import ctypes
import os
import threading

import pytest

from slotwise_plugins.native.availability import LIBRARY, missing_library

pytestmark = pytest.mark.skipif(missing_library() is not None, reason="no C compiler was there at install")
WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)


def chunks_run(num_threads, num_chunks):
    """How often each chunk was run."""
    library = ctypes.CDLL(str(LIBRARY))
    counts, threads = [0] * num_chunks, set()

    @WORK
    def work(_context, chunk, thread):
        counts[chunk] += 1
        threads.add(thread)

    library.slotwise_run(num_threads, ctypes.c_int64(num_chunks), work, None)
    assert all(0 <= thread < num_threads for thread in threads)
    return counts


@pytest.mark.parametrize("num_threads", [1, 2, 3, 9])
@pytest.mark.parametrize("num_chunks", [0, 1, 2, 17, 200])
def test_every_chunk_is_run_once(num_threads, num_chunks):
    for _ in range(20):
        assert chunks_run(num_threads, num_chunks) == [1] * num_chunks


def test_callers_on_several_threads_do_not_disturb_each_other():
    found = []

    def call():
        for _ in range(50):
            found.append(chunks_run(3, 20) == [1] * 20)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert found == [True] * 200


def test_a_forked_process_has_a_pool_of_its_own():
    assert chunks_run(3, 20) == [1] * 20
    child = os.fork()
    if child == 0:
        os._exit(0 if chunks_run(3, 20) == [1] * 20 else 1)
    assert os.waitpid(child, 0)[1] == 0
