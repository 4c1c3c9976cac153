"""How long a step of decoding takes as batch, context and waiting queue grow, and what it is made of.

What this file does not know: how results are shown.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from slotwise.sampling_params import SamplingParams
from slotwise_contrib.bench.sample_statistics import Distribution, distribution

if TYPE_CHECKING:
    import torch

    from slotwise.engine.llm import LLM
    from slotwise_plugins.native.chain import Chain, Link, Workspace
    from slotwise_plugins.native.row_ops import RowOps


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeCase:
    """A state of the engine in which steps are timed."""

    num_running: int
    context_len: int
    num_waiting: int = 0
    """Requests that find no seat."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeTimes:
    """One case."""

    case: DecodeCase
    step_ms: Distribution
    tokens_per_s: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_steps(llm: LLM, cases: Sequence[DecodeCase], *, num_steps: int, advance: Callable[[], None]) -> list[DecodeTimes]:
    """Each case from the first step in which all its requests decode."""
    found = []
    for index, case in enumerate(cases):
        samples = [seconds * 1e3 for seconds in _step_seconds(llm, case, num_steps, seed=index)]
        times = distribution(samples)
        found.append(DecodeTimes(case=case, step_ms=times, tokens_per_s=case.num_running / times.median * 1e3))
        advance()
    return found


def _step_seconds(llm: LLM, case: DecodeCase, num_steps: int, seed: int, begin: Callable[[], None] = lambda: None) -> list[float]:
    """begin: called before the first timed step."""
    chance, vocab_size = random.Random(seed), llm.front_end.core.executor.model.vocab_size  # type: ignore[attr-defined]
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=4 * num_steps + case.num_running, detokenize=False)
    engine, names = llm.engine, [f"case-{seed}-{number}" for number in range(case.num_running + case.num_waiting)]
    for number, name in enumerate(names):
        length = case.context_len if number < case.num_running else 4
        engine.add_request([chance.randrange(vocab_size) for _ in range(length)], params, request_id=name)
    begun: set[str] = set()
    while len(begun) < case.num_running:
        begun |= {output.request_id for output in engine.step()}
    begin()
    seconds = []
    for _ in range(num_steps):
        began = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - began)
    engine.abort_requests(names)
    while engine.has_unfinished_requests:
        engine.step()
    return seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class StepShares:
    """What a step of decoding is made of, in milliseconds; medians over steps."""

    case: DecodeCase
    matrices: float
    row_operations: float
    """Norms, rotation, activations."""
    attention: float
    """KV write included."""
    sampler: float
    rest: float
    """Scheduling, preparation, outputs: Python."""

    @property
    def whole(self) -> float:
        return self.matrices + self.row_operations + self.attention + self.sampler + self.rest


class Clock:
    """Seconds by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def watching(self, owner: Any, names: Sequence[str], part: str) -> Iterator[None]:
        """Book calls of an object's methods on `part`."""
        before = {name: getattr(owner, name) for name in names}
        for name, call in before.items():
            setattr(owner, name, self.timed(part, call))
        try:
            yield
        finally:
            for name, call in before.items():
                setattr(owner, name, call)

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call that is booked on `part`."""

        def run(*args: Any, **keywords: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **keywords)
            finally:
                self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began

        return run

    def milliseconds(self, num_steps: int) -> dict[str, float]:
        """Of each part, per step."""
        return {part: seconds / num_steps * 1e3 for part, seconds in self.seconds.items()}


def measure_shares(llm: LLM, case: DecodeCase, *, num_steps: int) -> StepShares:
    """Of the model component `fused` with native kernels and the attention backend `cpu`. Calls into C are timed as they are; how chains
    split into matrices and row operations is found by running them link by link. Raises ValueError for another model or backend."""
    from slotwise_backends.cpu_attention.native import load_kernels
    from slotwise_plugins.models.fused.decoder import FusedModel
    from slotwise_plugins.native.chain import NativeChain

    runner: Any = llm.front_end.core.executor
    model = runner.model
    if not isinstance(model, FusedModel) or not all(isinstance(chain, NativeChain) for chain in model.chains):
        raise ValueError("shares can be told of the model component fused with native kernels alone")
    whole, single = Clock(), Clock()
    with (
        whole.watching(model.kernels, ("run_chain",), "chains"),
        whole.watching(model, ("_logits",), "head"),
        whole.watching(load_kernels(), ("attend", "write"), "attention"),
        whole.watching(runner.sampler, ("sample",), "sampler"),
    ):
        step_ms = distribution([seconds * 1e3 for seconds in _step_seconds(llm, case, num_steps, seed=0, begin=whole.seconds.clear)]).median
    parts = whole.milliseconds(num_steps)
    chains = model.chains
    model.chains = [_link_by_link(chain.links, chain.workspace, model.ops, single) for chain in chains]
    try:
        _step_seconds(llm, case, num_steps, seed=0, begin=single.seconds.clear)
    finally:
        model.chains = chains
    share = single.seconds["matrices"] / (single.seconds["matrices"] + single.seconds["rows"])
    return StepShares(
        case=case,
        matrices=parts["chains"] * share + parts["head"],
        row_operations=parts["chains"] * (1 - share),
        attention=parts["attention"],
        sampler=parts["sampler"],
        rest=step_ms - sum(parts.values()),
    )


def _link_by_link(links: Sequence[Link], workspace: Workspace, ops: RowOps, clock: Clock) -> Chain:
    from slotwise_plugins.native.chain import LoopedChain, Multiply

    class TimedChain(LoopedChain):
        """Each link is booked."""

        def _run_link(self, link: Link, positions: torch.Tensor, first: int) -> None:
            part = "matrices" if isinstance(link, Multiply) else "rows"
            clock.timed(part, super()._run_link)(link, positions, first)

    return TimedChain(links, workspace, ops)
