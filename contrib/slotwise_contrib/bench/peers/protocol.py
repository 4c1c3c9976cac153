"""What an engine's adapter speaks: one JSON object per line, on standard input and a pipe of its own, since engines print on standard
output what they like. Standard library only, so that any interpreter can run it.

    <- {"ready": seconds since the process began, "version": "..."}
    -> {"prompts": [[id, ...], ...], "num_new": n}
    <- {"wall_s": seconds, "num_tokens": [new ids of each prompt], "peak_rss_mib": of this process so far}

What this file does not know: engines.
"""

import json
import os
import sys
import time
from collections.abc import Callable

FIRST_PROMPT = [1, 2000, 3000, 4000, 5000, 6000, 7000, 8000]


def peak_rss_mib() -> float:
    """Of this process, mapped files included."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024


def serve(version: str, generate: Callable[[list[list[int]], int], list[list[int]]]) -> None:
    """generate(prompts, num_new) -> new ids of each prompt, greedy, never ending early. Ends when standard input does."""
    channel = os.fdopen(int(os.environ["BENCH_CHANNEL"]), "w", encoding="utf-8")

    def answer(record: dict[str, object]) -> None:
        channel.write(json.dumps(record) + "\n")
        channel.flush()

    assert len(generate([FIRST_PROMPT], 1)[0]) == 1
    answer({"ready": time.time() - float(os.environ["BENCH_BEGAN"]), "version": version})
    for line in sys.stdin:
        order = json.loads(line)
        began = time.perf_counter()
        tokens = generate(order["prompts"], order["num_new"])
        wall = time.perf_counter() - began
        answer({"wall_s": wall, "num_tokens": [len(ids) for ids in tokens], "peak_rss_mib": peak_rss_mib()})
