"""Attention backends side by side on the same steps: time of KV write, metadata and forward, against the device's ceilings.

Backends take turns on each shape, call by call, so that whatever the machine does meanwhile meets all of them alike. Before anything is
timed, a few rows of each result are compared with the `reference` backend: no time stands without its error.

What this file does not know: how results are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from slotwise.engine.kv_layout import allocate
from slotwise.engine.prepare_inputs import slice_rows
from slotwise.errors import SlotwiseError
from slotwise.interfaces.attention import AttentionBackend, AttentionCall, KVLayoutRequest, KVWrite, MetadataRequest
from slotwise.plugin.attention_predicates import AttentionNeeds, attention_refusals
from slotwise.plugin.contract import import_implementation
from slotwise.plugin.machine import MachineDescription, describe_machine
from slotwise.plugin.options import validate_options
from slotwise.plugin.registry import ComponentRegistry
from slotwise_contrib.bench.attention_batch import AttentionShape, RandomBatch
from slotwise_contrib.bench.ceilings import Ceilings, measure_ceilings
from slotwise_contrib.bench.device_clock import DeviceClock
from slotwise_contrib.bench.sample_statistics import Distribution, distribution

NUM_CHECKED_ROWS = 2
PARTS = ("metadata", "kv_write", "forward")


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendTimes:
    """One backend on one shape; microseconds."""

    backend: str
    parts: dict[str, Distribution]
    """By the names in `PARTS`; `metadata` is paid once a step, the others in each layer."""
    tflop_per_s: float
    """Of the median forward."""
    gb_per_s: float
    error: float
    """Largest difference from `reference` in the checked rows, relative to the largest value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapeResult:
    """All backends on one shape."""

    shape: AttentionShape
    floor_us: float
    """What the measured ceilings allow: the longer of moving the bytes and computing the products."""
    times: tuple[BackendTimes, ...]
    refused: dict[str, str]
    """Backend -> why it does not serve the shape."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionResult:
    """One run of the benchmark."""

    machine: MachineDescription
    num_threads: int
    ceilings: Ceilings
    shapes: tuple[ShapeResult, ...]

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        found = asdict(self)
        for shape, its in zip(found["shapes"], self.shapes, strict=True):
            shape["title"] = its.shape.title
        return found


class Runner:
    """One backend with a cache of its own for one shape."""

    def __init__(self, name: str, registry: ComponentRegistry, batch: RandomBatch, machine: MachineDescription) -> None:
        loaded = registry.get("attention", name)
        needs = AttentionNeeds(
            machine=machine,
            layers=(batch.shape.layer,),
            dtype=batch.shape.dtype,
            kv_dtype=batch.shape.kv_dtype,
            block_size=batch.shape.block_size,
        )
        if refusals := attention_refusals(loaded.component.capabilities, needs):
            raise SlotwiseError("; ".join(f"{each.predicate}: wanted {each.wanted}, offered {each.offered}" for each in refusals))
        self.batch, layout = batch, loaded.component.capabilities.kv_layouts[0]
        options = validate_options(loaded, {}, prefix="attention.options")
        self.backend: AttentionBackend = import_implementation(loaded)(batch.setup(layout, options))
        shape = batch.shape
        request = KVLayoutRequest(
            name=layout,
            num_blocks=batch.num_blocks,
            block_size=shape.block_size,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            dtype=shape.storage_dtype,
        )
        self.cache = allocate(self.backend.kv_cache_layout(request), batch.device)
        context = torch.randn(self.cache.shape, generator=torch.Generator().manual_seed(1))
        self.cache.copy_(context.to(self.cache.device).to(self.cache.dtype))
        self.output = torch.empty_like(batch.query)
        self.metadata = self.backend.build_metadata(MetadataRequest(common=batch.common))

    def build_metadata(self) -> None:
        """Once a step."""
        self.metadata = self.backend.build_metadata(MetadataRequest(common=self.batch.common))

    def write_kv(self) -> None:
        """In each layer, unless the backend fuses it."""
        if not self.backend.capabilities.fused_kv_write:
            batch = self.batch
            self.backend.write_kv(
                KVWrite(
                    layer=batch.shape.layer, key=batch.key, value=batch.value, kv_cache=self.cache, slot_mapping=batch.common.slot_mapping
                )
            )

    def forward(self) -> None:
        """In each layer."""
        batch = self.batch
        self.backend.forward(
            AttentionCall(
                layer=batch.shape.layer,
                query=batch.query,
                key=batch.key,
                value=batch.value,
                kv_cache=self.cache,
                metadata=self.metadata,
                output=self.output,
            )
        )

    def error(self, registry: ComponentRegistry) -> float:
        """Against `reference`, on the first rows of the batch."""
        self.write_kv()
        self.forward()
        batch, rows = self.batch, min(NUM_CHECKED_ROWS, self.batch.common.num_reqs)
        common = slice_rows(batch.common, 0, rows)
        loaded = registry.get("attention", "reference")
        setup = batch.setup(self.backend.setup.kv_layout, validate_options(loaded, {}, prefix="attention.options"))
        reference: AttentionBackend = import_implementation(loaded)(setup)
        call = AttentionCall(
            layer=batch.shape.layer,
            query=batch.query[: common.num_tokens],
            key=None,
            value=None,
            kv_cache=self.cache,
            metadata=reference.build_metadata(MetadataRequest(common=common)),
            output=torch.empty(common.num_tokens, *batch.query.shape[1:], dtype=torch.float64, device=batch.device),
        )
        reference.forward(call)
        difference = (self.output[: common.num_tokens].double() - call.output).abs().max()
        return float(difference / call.output.abs().max())


def measure(
    names: Sequence[str], shapes: Sequence[AttentionShape], *, device: str, num_rounds: int, advance: Callable[[], None]
) -> AttentionResult:
    """Raises PluginError for a name that is not there. `advance` is called once per shape."""
    registry, machine = ComponentRegistry(), describe_machine(device)
    ceilings = measure_ceilings(machine.device, shapes[0].dtype)
    results = []
    for shape in shapes:
        results.append(_measure_shape(names, shape, registry=registry, machine=machine, ceilings=ceilings, num_rounds=num_rounds))
        advance()
    return AttentionResult(machine=machine, num_threads=torch.get_num_threads(), ceilings=ceilings, shapes=tuple(results))


def _measure_shape(
    names: Sequence[str],
    shape: AttentionShape,
    *,
    registry: ComponentRegistry,
    machine: MachineDescription,
    ceilings: Ceilings,
    num_rounds: int,
) -> ShapeResult:
    batch = RandomBatch(shape=shape, device=machine.device)
    runners: dict[str, Runner] = {}
    refused: dict[str, str] = {}
    for name in names:
        try:
            runners[name] = Runner(name, registry, batch, machine)
        except SlotwiseError as error:
            refused[name] = str(error)
    errors = {name: runner.error(registry) for name, runner in runners.items()}
    samples = _take_turns(runners, DeviceClock(machine.device), num_rounds)
    return ShapeResult(
        shape=shape,
        floor_us=max(shape.bytes_moved / ceilings.read_gb_per_s / 1e3, shape.flops / ceilings.gemm_tflop_per_s / 1e6),
        times=tuple(_times(name, shape, samples[name], errors[name]) for name in runners),
        refused=refused,
    )


def _take_turns(runners: dict[str, Runner], clock: DeviceClock, num_rounds: int) -> dict[str, dict[str, list[float]]]:
    """Samples by backend and part. One round that does not count, then `num_rounds`, forwards and backwards in turn."""
    samples: dict[str, dict[str, list[float]]] = {name: {part: [] for part in PARTS} for name in runners}
    for number in range(num_rounds + 1):
        for name in list(runners) if number % 2 else reversed(runners):
            runner = runners[name]
            for part, function in zip(PARTS, (runner.build_metadata, runner.write_kv, runner.forward), strict=True):
                elapsed = clock.microseconds(function)
                if number:
                    samples[name][part].append(elapsed)
    return samples


def _times(name: str, shape: AttentionShape, samples: dict[str, list[float]], error: float) -> BackendTimes:
    parts = {part: distribution(values) for part, values in samples.items()}
    forward = parts["forward"].median
    return BackendTimes(
        backend=name,
        parts=parts,
        tflop_per_s=shape.flops / forward / 1e6,
        gb_per_s=shape.bytes_moved / forward / 1e3,
        error=error,
    )
