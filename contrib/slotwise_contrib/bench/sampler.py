"""Samplers beside transformers' own chain of warpers, on the same logits, in turns.

Each is given the logits of a step and gives ids. transformers' chain is what `generate` runs: penalty, temperature, top_k, top_p and min_p
as they are asked for, softmax, one draw per row. What this file does not know: how results are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from slotwise.engine.logits_processors import LogitsProcessors
from slotwise.engine.sampling_batch import SamplingColumns
from slotwise.interfaces.logits_processor import BatchUpdate, LogitsProcessorSetup, LogitsRows, RowRequest
from slotwise.interfaces.sampler import Sampler, SampleRequest, SamplerSetup
from slotwise.plugin.contract import import_implementation
from slotwise.plugin.machine import describe_machine
from slotwise.plugin.options import validate_options
from slotwise.plugin.registry import ComponentRegistry
from slotwise.sampling_params import SamplingParams
from slotwise_contrib.bench.device_clock import DeviceClock
from slotwise_contrib.bench.sample_statistics import Distribution, distribution

TRANSFORMERS = "transformers"
NUM_PROMPT_TOKENS = 256
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_k": {"temperature": 0.8, "top_k": 50},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "top_k+top_p": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
    "repetition": {"temperature": 0.8, "repetition_penalty": 1.1},
    "logprobs": {"temperature": 0.0, "logprobs": 5},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerCase:
    """One step."""

    batch: int
    vocab_size: int
    setting: str
    """Key of `SETTINGS`."""

    @property
    def title(self) -> str:
        return f"{self.setting}, {self.batch} x {self.vocab_size}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseTimes:
    """Microseconds of one step, by sampler."""

    case: SamplerCase
    times: dict[str, Distribution]

    def ratio(self, name: str) -> float:
        """How many times as fast as transformers' chain."""
        return self.times[TRANSFORMERS].median / self.times[name].median


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerResult:
    """One run of the benchmark."""

    device: str
    num_threads: int
    samplers: tuple[str, ...]
    cases: tuple[CaseTimes, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        found = asdict(self)
        for case, its in zip(found["cases"], self.cases, strict=True):
            case["ratios"] = {name: its.ratio(name) for name in self.samplers}
        return found


def measure(
    names: Sequence[str], cases: Sequence[SamplerCase], *, device: str, num_rounds: int, advance: Callable[[], None]
) -> SamplerResult:
    """Raises PluginError for a name that is not there. `advance` is called once per case."""
    machine, registry = describe_machine(device), ComponentRegistry()
    clock, results = DeviceClock(machine.device), []
    for case in cases:
        logits = peaked_logits(case.batch, case.vocab_size, machine.device)
        steps = {name: slotwise_step(registry, name, case, logits) for name in names}
        steps[TRANSFORMERS] = transformers_step(case, logits)
        samples: dict[str, list[float]] = {name: [] for name in steps}
        for number in range(num_rounds + 1):
            for name in list(steps) if number % 2 else reversed(steps):
                elapsed = clock.microseconds(steps[name])
                if number:
                    samples[name].append(elapsed)
        results.append(CaseTimes(case=case, times={name: distribution(values) for name, values in samples.items()}))
        advance()
    return SamplerResult(device=machine.device, num_threads=torch.get_num_threads(), samplers=tuple(names), cases=tuple(results))


def peaked_logits(batch: int, vocab_size: int, device: str) -> torch.Tensor:
    """[batch, vocab_size] float32, of the shape that language models give: a few hundred ids carry nearly all of the mass."""
    generator = torch.Generator().manual_seed(batch + vocab_size)
    logits = torch.randn(batch, vocab_size, generator=generator) * 2
    places = torch.randint(vocab_size, (batch, 200), generator=generator)
    return logits.scatter_add_(1, places, torch.randn(batch, 200, generator=generator).abs() * 6).to(device)


def slotwise_step(registry: ComponentRegistry, name: str, case: SamplerCase, logits: torch.Tensor) -> Callable[[], torch.Tensor]:
    """What the engine does in a step whose batch has not changed: processors are bound, the sampler is called."""
    device = str(logits.device)
    params = SamplingParams(max_tokens=10_000, **SETTINGS[case.setting])
    requests = [(row, _request(params, row, case.vocab_size)) for row in range(case.batch)]
    update = BatchUpdate(num_rows=case.batch, added=requests)
    columns = SamplingColumns(max_num_rows=case.batch, vocab_size=case.vocab_size, device=device)
    metadata = columns.update(update)
    processors = _processors(registry, case, device)
    processors.update(update)
    loaded = registry.get("sampler", name)
    sampler: Sampler = import_implementation(loaded)(
        SamplerSetup(
            vocab_size=case.vocab_size,
            max_num_reqs=case.batch,
            device=device,
            options=validate_options(loaded, {}, prefix="sampler.options"),
        )
    )
    rows = LogitsRows(requests=range(case.batch), drafts=((),) * case.batch)
    positions = [NUM_PROMPT_TOKENS] * case.batch

    def step() -> torch.Tensor:
        copy = logits.clone()
        return sampler.sample(SampleRequest(logits=copy, metadata=metadata, positions=positions, edits=processors.bind(rows))).token_ids

    return step


def transformers_step(case: SamplerCase, logits: torch.Tensor) -> Callable[[], torch.Tensor]:
    """`LogitsProcessorList` as `GenerationMixin` makes it for these parameters, then its draw."""
    import transformers

    wanted = SETTINGS[case.setting]
    chain = transformers.LogitsProcessorList()
    if (penalty := wanted.get("repetition_penalty")) is not None:
        chain.append(transformers.RepetitionPenaltyLogitsProcessor(penalty))
    if wanted["temperature"]:
        chain.append(transformers.TemperatureLogitsWarper(wanted["temperature"]))
    if (top_k := wanted.get("top_k")) is not None:
        chain.append(transformers.TopKLogitsWarper(top_k))
    if (top_p := wanted.get("top_p")) is not None:
        chain.append(transformers.TopPLogitsWarper(top_p))
    if (min_p := wanted.get("min_p")) is not None:
        chain.append(transformers.MinPLogitsWarper(min_p))
    prompts = torch.tensor([prompt_ids(row, case.vocab_size) for row in range(case.batch)], device=logits.device)
    num_logprobs = wanted.get("logprobs")

    def step() -> torch.Tensor:
        scores: torch.Tensor = chain(prompts, logits.clone())
        if num_logprobs is not None:
            scores.log_softmax(dim=-1).topk(num_logprobs, dim=-1)
        return scores.argmax(dim=-1) if not wanted["temperature"] else torch.multinomial(scores.softmax(dim=-1), 1)

    return step


def prompt_ids(row: int, vocab_size: int) -> list[int]:
    return [(row * 7919 + place * 104729) % vocab_size for place in range(NUM_PROMPT_TOKENS)]


def _request(params: SamplingParams, row: int, vocab_size: int) -> RowRequest:
    return RowRequest(sampling_params=params, prompt_token_ids=prompt_ids(row, vocab_size), output_token_ids=[])


def _processors(registry: ComponentRegistry, case: SamplerCase, device: str) -> LogitsProcessors:
    made = []
    for name in registry.names("logits_processor"):
        loaded = registry.get("logits_processor", name)
        setup = LogitsProcessorSetup(
            vocab_size=case.vocab_size,
            max_num_reqs=case.batch,
            device=device,
            options=validate_options(loaded, {}, prefix="logits_processors.options"),
        )
        made.append(import_implementation(loaded)(setup))
    return LogitsProcessors(made)
