"""Engines beside each other: every one in a process of its own, all loaded, taking turns run by run.

Starts are timed one after the other, with nothing else running. What this file does not know: how results are shown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slotwise.errors import ConfigError, SlotwiseError
from slotwise_contrib.bench.model_runs import Workload
from slotwise_contrib.bench.sample_statistics import Distribution, distribution

ADAPTERS = ("llama_cpp", "openvino", "vllm", "transformers")
OURS = "slotwise"
VOCAB_SIZE = 48000
"""Ids below this are drawn; each engine must have them."""
_FOLDER = Path(__file__).parent / "peers"
_LINES_OF_LOG = 15


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerSpec:
    """One engine of a comparison."""

    label: str
    adapter: str
    """Of `ADAPTERS`, or `slotwise`."""
    interpreter: str
    """The Python that has the engine."""
    model: str
    """What the engine loads."""
    arm: str = ""
    """Settings, of ours alone."""

    @classmethod
    def parse(cls, text: str) -> PeerSpec:
        """text: `LABEL=ADAPTER,PYTHON,MODEL`. Raises ConfigError."""
        label, _, rest = text.partition("=")
        words = rest.split(",")
        if not label or len(words) != 3 or words[0] not in ADAPTERS:
            raise ConfigError(f"--peer: given {text!r}; accepted: LABEL=ADAPTER,PYTHON,MODEL with ADAPTER one of {', '.join(ADAPTERS)}.")
        return cls(label=label, adapter=words[0], interpreter=words[1], model=words[2])

    @classmethod
    def ours(cls, text: str) -> PeerSpec:
        """text: `LABEL=MODEL` or `LABEL=MODEL,KEY=VALUE,...`. Raises ConfigError."""
        label, _, rest = text.partition("=")
        model, _, arm = rest.partition(",")
        if not label or not model or "=" in model:
            raise ConfigError(f"--ours: given {text!r}; accepted: LABEL=MODEL,KEY=VALUE,KEY=VALUE,... (settings may be left out).")
        return cls(label=label, adapter=OURS, interpreter=sys.executable, model=model, arm=arm)


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerTimes:
    """One engine on one workload."""

    wall_s: Distribution
    first_token_s: Distribution | None
    """Of the same prompts with one new token; for a single stream."""
    decode_tokens_per_s: float | None
    """Of a single stream, after the first token."""
    output_tokens_per_s: float
    prompt_tokens_per_s: float


@dataclass(kw_only=True, slots=True)
class PeerResult:
    """One engine."""

    spec: PeerSpec
    version: str
    start_s: float
    """From the start of the process to the first token of a short prompt."""
    peak_rss_mib: float = 0.0
    times: dict[str, PeerTimes] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Peer:
    """A running engine."""

    def __init__(self, spec: PeerSpec, num_threads: int, log: Path) -> None:
        """Returns when the engine has given its first token. Raises SlotwiseError if it does not come so far."""
        self._log = log
        words = [spec.interpreter, str(_FOLDER / f"adapter_{spec.adapter}.py"), spec.model, str(num_threads)]
        receiving, sending = os.pipe()
        with log.open("w", encoding="utf-8") as printed:
            self._process = subprocess.Popen(
                [*words, spec.arm] if spec.adapter == OURS else words,
                stdin=subprocess.PIPE, stdout=printed, stderr=printed, text=True, pass_fds=(sending,),
                env={**os.environ, "BENCH_BEGAN": repr(time.time()), "BENCH_CHANNEL": str(sending)},
            )  # fmt: skip
        os.close(sending)
        self._answers = os.fdopen(receiving, encoding="utf-8")
        first = self._answer()
        self.result = PeerResult(spec=spec, version=first["version"], start_s=first["ready"])

    def run(self, prompts: Sequence[Sequence[int]], num_new: int) -> float:
        """Seconds of all prompts together."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "num_new": num_new}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        if answer["num_tokens"] != [num_new] * len(prompts):
            raise SlotwiseError(f"{self.result.spec.label} gave {answer['num_tokens']} tokens instead of {num_new} for each prompt.")
        self.result.peak_rss_mib = answer["peak_rss_mib"]
        return float(answer["wall_s"])

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._answers.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            self._process.wait()
            last = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES_OF_LOG:]
            raise SlotwiseError("an engine ended before it answered:\n" + "\n".join(last))
        found: dict[str, Any] = json.loads(line)
        return found


def measure_peers(
    specs: Sequence[PeerSpec],
    workloads: Sequence[Workload],
    *,
    num_runs: int,
    num_threads: int,
    log_folder: Path,
    advance: Callable[[], None],
) -> list[PeerResult]:
    """One run of each workload does not count. The order of engines turns round from run to run."""
    peers: list[Peer] = []
    try:
        for index, spec in enumerate(specs):
            peers.append(Peer(spec, num_threads, log_folder / f"peer_{index}.log"))
        for workload in workloads:
            _measure_workload(peers, workload, num_runs, advance)
    finally:
        for peer in peers:
            peer.close()
    return [peer.result for peer in peers]


def _measure_workload(peers: Sequence[Peer], workload: Workload, num_runs: int, advance: Callable[[], None]) -> None:
    is_stream = len(workload.prompt_lens) == 1 and workload.num_new > 1
    walls: dict[int, list[float]] = {index: [] for index in range(len(peers))}
    firsts: dict[int, list[float]] = {index: [] for index in range(len(peers))}
    for run in range(num_runs + 1):
        for index in list(walls) if run % 2 else reversed(walls):
            seconds = peers[index].run(workload.prompts(2 * run, VOCAB_SIZE), workload.num_new)
            first = peers[index].run(workload.prompts(2 * run + 1, VOCAB_SIZE), 1) if is_stream else None
            if run:
                walls[index].append(seconds)
                firsts[index] += [] if first is None else [first]
        advance()
    num_new, num_prompt = workload.num_new * len(workload.prompt_lens), sum(workload.prompt_lens)
    for index, peer in enumerate(peers):
        wall = distribution(walls[index])
        first_token = distribution(firsts[index]) if is_stream else None
        peer.result.times[workload.name] = PeerTimes(
            wall_s=wall,
            first_token_s=first_token,
            decode_tokens_per_s=None if first_token is None else (workload.num_new - 1) / (wall.median - first_token.median),
            output_tokens_per_s=num_new / wall.median,
            prompt_tokens_per_s=num_prompt / wall.median,
        )
