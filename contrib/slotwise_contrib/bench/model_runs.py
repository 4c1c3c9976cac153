"""Whole engines on fixed workloads, in turns: time to first token, tokens per second, wall time. Nothing is timed without its tokens.

An arm is a set of settings on top of the common ones. All arms hold their model in memory and take turns, run by run. What this file does
not know: how results are shown.
"""

from __future__ import annotations

import random
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from slotwise.errors import ConfigError
from slotwise.sampling_params import SamplingParams
from slotwise_contrib.bench.ceilings import Ceilings, measure_ceilings
from slotwise_contrib.bench.sample_statistics import Distribution, distribution

if TYPE_CHECKING:
    from slotwise.engine.llm import LLM
    from slotwise.engine.outputs import RequestOutput

LOWEST_ID = 1000
"""Prompts are random ids from here on: below there are special and single-letter tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Requests that are made at once."""

    name: str
    title: str
    prompt_lens: tuple[int, ...]
    num_new: int
    num_shared: int = 0
    """Leading tokens that all prompts share."""

    def prompts(self, run: int, vocab_size: int) -> list[list[int]]:
        """Other ids in each run, so that no cache carries over."""
        chance = random.Random(f"{self.name}-{run}")

        def ids(count: int) -> list[int]:
            return [chance.randrange(min(LOWEST_ID, vocab_size // 2), vocab_size) for _ in range(count)]

        shared = ids(self.num_shared)
        return [shared + ids(length - self.num_shared) for length in self.prompt_lens]


def _lengths(count: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(random.Random(f"W2-lens-{index}").randint(low, high) for index in range(count))


WORKLOADS = {
    "W1": Workload(name="W1", title="one stream, 128 + 128", prompt_lens=(128,), num_new=128),
    "W2": Workload(name="W2", title="32 requests of 64 .. 512, + 128", prompt_lens=_lengths(32, 64, 512), num_new=128),
    "W3": Workload(name="W3", title="32 requests, 512 shared + 32, + 64", prompt_lens=(544,) * 32, num_new=64, num_shared=512),
    "W4": Workload(name="W4", title="prompt of 4096", prompt_lens=(4096,), num_new=1),
}


def chosen_workloads(text: str) -> list[Workload]:
    """text: names of `WORKLOADS`, with commas. Raises ConfigError."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in WORKLOADS:
            raise ConfigError(f"--workloads: given {name!r}; accepted: {', '.join(WORKLOADS)}.")
    return [WORKLOADS[name] for name in names]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTimes:
    """One arm on one workload, over the runs."""

    arm: str
    workload: str
    wall_s: Distribution
    first_token_s: Distribution
    """Median over the requests of each run."""
    output_tokens_per_s: Distribution
    """All new tokens over the wall time."""
    decode_tokens_per_s: Distribution | None
    """After the first token, of a single request; None with several."""
    prompt_tokens_per_s: Distribution


@dataclass(frozen=True, kw_only=True, slots=True)
class Roof:
    """What one arm could reach on this machine if nothing but its matrices took time."""

    weights_mib: float
    decode_tokens_per_s: float
    """One stream: every weight read once per token, at the measured bandwidth."""
    prompt_tokens_per_s: float
    """Two operations per weight and token, at the measured rate of a matrix product; attention not counted."""


def roof_of(model: Any, ceilings: Ceilings) -> Roof | None:
    """None for models that do not tell their weights."""
    num_bytes, num_weights = getattr(model, "num_bytes", None), getattr(model, "num_weights", None)
    if num_bytes is None or num_weights is None:
        return None
    return Roof(
        weights_mib=num_bytes / 2**20,
        decode_tokens_per_s=ceilings.read_gb_per_s * 1e9 / num_bytes,
        prompt_tokens_per_s=ceilings.gemm_tflop_per_s * 1e12 / (2 * num_weights),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelResult:
    """One run of the benchmark."""

    model: str
    num_threads: int
    load_s: dict[str, float]
    """Arm -> seconds from its settings to a ready engine, imports included for the first."""
    peak_rss_mib: float
    """Of this process with all arms in it."""
    times: tuple[RunTimes, ...]
    ceilings: Ceilings
    roofs: dict[str, Roof]
    """Arm -> roof, of those whose model tells its weights."""

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return asdict(self)


def measure(
    model: str,
    arms: Mapping[str, Callable[[], tuple[LLM, float]]],
    workloads: Sequence[Workload],
    *,
    num_runs: int,
    advance: Callable[[], None],
) -> ModelResult:
    """arms: name -> makes the engine, and tells how long that took. One run of each workload does not count."""
    import torch

    made = {name: make() for name, make in arms.items()}
    ceilings = measure_ceilings(device_of(next(iter(made.values()))[0]), "float32")
    found = {name: roof_of(_model(llm), ceilings) for name, (llm, _) in made.items()}
    roofs = {name: roof for name, roof in found.items() if roof is not None}
    times = []
    for workload in workloads:
        samples: dict[str, list[list[RequestOutput]]] = {name: [] for name in made}
        for run in range(num_runs + 1):
            for name in list(made) if run % 2 else reversed(made):
                outputs = run_once(made[name][0], workload, run)
                if run:
                    samples[name].append(outputs)
            advance()
        times += [summary(name, workload, runs) for name, runs in samples.items()]
    return ModelResult(
        model=model,
        num_threads=torch.get_num_threads(),
        load_s={name: seconds for name, (_, seconds) in made.items()},
        peak_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        times=tuple(times),
        ceilings=ceilings,
        roofs=roofs,
    )


def device_of(llm: LLM) -> str:
    """Where its model computes."""
    device: str = _model(llm).setup.device
    return device


def _model(llm: LLM) -> Any:
    executor: Any = llm.front_end.core.executor
    return executor.model


def run_once(llm: LLM, workload: Workload, run: int) -> list[RequestOutput]:
    """Greedy, never stopping early."""
    vocab_size = _model(llm).vocab_size
    params = SamplingParams(temperature=0.0, max_tokens=workload.num_new, ignore_eos=True, detokenize=False)
    return llm.generate(workload.prompts(run, vocab_size), params, use_tqdm=False)


def summary(arm: str, workload: Workload, runs: Sequence[Sequence[RequestOutput]]) -> RunTimes:
    """From the requests' own clocks."""
    walls, firsts, decodes = [], [], []
    for outputs in runs:
        metrics = [output.metrics for output in outputs if output.metrics is not None]
        begin = min(item.arrival_time for item in metrics)
        ends = [item.finished_time or begin for item in metrics]
        first = sorted(item.time_to_first_token or 0.0 for item in metrics)
        walls.append(max(ends) - begin)
        firsts.append(first[len(first) // 2])
        if len(metrics) == 1 and workload.num_new > 1:
            decodes.append((workload.num_new - 1) / (ends[0] - (metrics[0].first_token_time or begin)))
    num_new, num_prompt = workload.num_new * len(workload.prompt_lens), sum(workload.prompt_lens)
    return RunTimes(
        arm=arm,
        workload=workload.name,
        wall_s=distribution(walls),
        first_token_s=distribution(firsts),
        output_tokens_per_s=distribution([num_new / wall for wall in walls]),
        decode_tokens_per_s=distribution(decodes) if decodes else None,
        prompt_tokens_per_s=distribution([num_prompt / wall for wall in walls]),
    )
