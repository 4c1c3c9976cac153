"""The results of the benchmarks as tables. What this file does not know: how they were measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.cli.rendering import table
from slotwise_contrib.bench.model_runs import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from slotwise_contrib.bench.attention import AttentionResult, ShapeResult
    from slotwise_contrib.bench.command_times import CommandResult
    from slotwise_contrib.bench.comparison import Comparison
    from slotwise_contrib.bench.decode_steps import DecodeTimes, StepShares
    from slotwise_contrib.bench.linear import LinearResult
    from slotwise_contrib.bench.model_runs import ModelResult
    from slotwise_contrib.bench.overhead import OverheadResult
    from slotwise_contrib.bench.peer_runs import PeerResult
    from slotwise_contrib.bench.quality import Quality
    from slotwise_contrib.bench.sample_statistics import Distribution
    from slotwise_contrib.bench.sampler import SamplerResult


def overhead_tables(result: OverheadResult) -> list[Table]:
    """One row per case, in microseconds of CPU per running request and step; then how each part grows."""
    names = list(result.cases[0].parts)
    cases = [
        (
            str(found.case.num_running),
            str(found.case.num_waiting),
            str(found.case.context_len),
            *(f"{found.per_request(name):.2f}" for name in names),
            _spread(found.parts["core"], found.case.num_running),
        )
        for found in result.cases
    ]
    slopes = [
        (
            slopes.part,
            _number(slopes.running.slope if slopes.running else None, 2),
            _number(slopes.running.intercept if slopes.running else None, 0),
            _number(slopes.exponent, 2),
            _number(slopes.waiting, 1),
            _number(slopes.context, 0),
        )
        for slopes in result.slopes
    ]
    return [
        table(("running", "waiting", "context", *names, "core p10-p90"), cases, title="CPU us per running request and step (median)"),
        table(
            ("part", "us/running", "us/step", "exponent", "ns/waiting", "ns/running per 1000 context"),
            slopes,
            title="\nHow it grows per step",
        ),
    ]


def attention_tables(result: AttentionResult) -> list[Table | str]:
    """What the device can do, then one table per shape, fastest forward first."""
    ceilings, machine = result.ceilings, result.machine
    head = (
        f"{machine.device_name} ({machine.device}, {result.num_threads} threads): reads {ceilings.read_gb_per_s:.1f} GB/s, "
        f"multiplies {ceilings.dtype} matrices at {ceilings.gemm_tflop_per_s:.2f} TFLOP/s, as measured beside the backends"
    )
    return [head, *(_shape_table(shape) for shape in result.shapes), *_refusals(result)]


def _shape_table(result: ShapeResult) -> Table:
    rows = [
        (
            times.backend,
            f"{times.parts['forward'].median:.1f}",
            _spread(times.parts["forward"], 1, digits=1),
            f"{times.parts['forward'].median / result.floor_us:.1f}",
            f"{times.tflop_per_s:.3f}",
            f"{times.gb_per_s:.1f}",
            f"{times.parts['kv_write'].median:.1f}",
            f"{times.parts['metadata'].median:.1f}",
            f"{times.error:.1e}",
        )
        for times in sorted(result.times, key=lambda times: times.parts["forward"].median)
    ]
    columns = ("backend", "forward us", "p10-p90", "x floor", "TFLOP/s", "GB/s", "KV write us", "metadata us/step", "error")
    return table(columns, rows, title=f"\n{result.shape.title}: at best {result.floor_us:.1f} us")


def _refusals(result: AttentionResult) -> list[str]:
    """Who did not take part, and why, once each."""
    reasons = {(name, why) for shape in result.shapes for name, why in shape.refused.items()}
    return [f"{name} did not take part: {why}" for name, why in sorted(reasons)]


def sampler_table(result: SamplerResult) -> Table:
    """One row per case: microseconds of a step, and how many times as fast as transformers' chain."""
    rows = [
        (
            found.case.setting,
            str(found.case.batch),
            str(found.case.vocab_size),
            *(f"{times.median:.0f}" for times in found.times.values()),
            *(f"{found.ratio(name):.2f}" for name in result.samplers),
        )
        for found in result.cases
    ]
    names = [*result.samplers, "transformers"]
    columns = ("setting", "batch", "vocabulary", *(f"{name} us" for name in names), *(f"{name} times as fast" for name in result.samplers))
    return table(columns, rows, title=f"{result.device}, {result.num_threads} threads, medians")


def model_tables(result: ModelResult) -> list[Table | str]:
    """One table per workload, a row per arm."""
    loads = ", ".join(f"{arm} {seconds:.1f} s" for arm, seconds in result.load_s.items())
    head = f"{result.model}, {result.num_threads} threads; ready after: {loads}; {result.peak_rss_mib:.0f} MiB with all of them"
    columns = ("arm", "wall s", "p10-p90", "first token ms", "new tokens/s", "decode tokens/s", "prompt tokens/s")
    tables: list[Table | str] = [head, *_roof_lines(result)]
    for name in dict.fromkeys(times.workload for times in result.times):
        rows = [
            (
                times.arm,
                f"{times.wall_s.median:.2f}",
                _spread(times.wall_s, 1),
                f"{times.first_token_s.median * 1e3:.0f}",
                f"{times.output_tokens_per_s.median:.1f}",
                "-" if times.decode_tokens_per_s is None else f"{times.decode_tokens_per_s.median:.1f}",
                f"{times.prompt_tokens_per_s.median:.0f}",
            )
            for times in result.times
            if times.workload == name
        ]
        tables.append(table(columns, rows, title=f"\n{name}: {WORKLOADS[name].title}"))
    return tables


def _roof_lines(result: ModelResult) -> list[str]:
    """What the machine allows, and how near to it a single stream and a prompt come."""
    ceilings = result.ceilings
    rate = f"{ceilings.gemm_tflop_per_s * 1e3:.0f} GFLOP/s in {ceilings.dtype}"
    lines = [f"this machine reads {ceilings.read_gb_per_s:.1f} GB/s and multiplies {rate}"]
    for arm, roof in result.roofs.items():
        line = f"{arm}: {roof.weights_mib:.0f} MiB of weights allow {roof.decode_tokens_per_s:.0f} decode tokens/s"
        for times in result.times:
            if times.arm == arm and times.decode_tokens_per_s is not None:
                line += f" ({times.workload}: {times.decode_tokens_per_s.median / roof.decode_tokens_per_s:.0%} of it)"
        line += f", and {roof.prompt_tokens_per_s:.0f} prompt tokens/s"
        for times in result.times:
            if times.arm == arm and WORKLOADS[times.workload].num_new == 1:
                line += f" ({times.workload}: {times.prompt_tokens_per_s.median / roof.prompt_tokens_per_s:.0%})"
        lines.append(line)
    return lines


def peers_table(results: Sequence[PeerResult]) -> list[Table | str]:
    """One row per engine: start and memory, then what each workload is judged by."""
    columns = ["engine", "start s", "peak MiB"]
    workloads = list(dict.fromkeys(name for result in results for name in result.times))
    for name in workloads:
        is_stream = results[0].times[name].decode_tokens_per_s is not None
        is_prompt = WORKLOADS[name].num_new == 1
        columns += [f"{name} decode/s", f"{name} first ms"] if is_stream else [f"{name} prompt/s" if is_prompt else f"{name} new/s"]
        columns.append(f"{name} wall s")
    rows = []
    for result in results:
        row = [f"{result.spec.label} ({result.version})", f"{result.start_s:.1f}", f"{result.peak_rss_mib:.0f}"]
        for name in workloads:
            times = result.times[name]
            if times.decode_tokens_per_s is not None and times.first_token_s is not None:
                row += [f"{times.decode_tokens_per_s:.1f}", f"{times.first_token_s.median * 1e3:.0f}"]
            else:
                row.append(f"{times.prompt_tokens_per_s if WORKLOADS[name].num_new == 1 else times.output_tokens_per_s:.0f}")
            row.append(f"{times.wall_s.median:.2f}")
        rows.append(row)
    titles = "; ".join(f"{name}: {WORKLOADS[name].title}" for name in workloads)
    return [f"medians, engines in turns; {titles}", table(columns, rows)]


def steps_table(found: Sequence[DecodeTimes]) -> Table:
    """One row per case."""
    rows = [
        (
            f"{times.case.num_running}",
            f"{times.case.context_len}",
            f"{times.case.num_waiting}",
            f"{times.step_ms.median:.2f}",
            _spread(times.step_ms, 1),
            f"{times.tokens_per_s:.0f}",
        )
        for times in found
    ]
    return table(("running", "context", "waiting", "step ms", "p10-p90", "tokens/s"), rows)


def shares_table(found: Sequence[StepShares]) -> Table:
    """One row per case, milliseconds and shares."""

    def cell(value: float, whole: float) -> str:
        return f"{value:.2f} ({value / whole:.0%})"

    rows = []
    for shares in found:
        parts = (shares.matrices, shares.row_operations, shares.attention, shares.sampler, shares.rest)
        case = f"{shares.case.num_running} x {shares.case.context_len}"
        rows.append((case, f"{shares.whole:.2f}", *(cell(part, shares.whole) for part in parts)))
    return table(("rows x context", "step ms", "matrices", "row operations", "attention", "sampler", "rest (Python)"), rows)


def startup_table(found: Mapping[str, Distribution]) -> Table:
    """One row per stage, in milliseconds."""
    rows = [(name, f"{seconds.median * 1e3:.0f}", f"{seconds.p10 * 1e3:.0f}-{seconds.p90 * 1e3:.0f}") for name, seconds in found.items()]
    return table(("stage", "ms", "p10-p90"), rows)


def linear_tables(result: LinearResult) -> list[Table | str]:
    """One row per component, shape and number of rows."""
    ceilings = result.ceilings
    head = (
        f"{result.dtype}, {result.num_threads} threads; this machine reads {ceilings.read_gb_per_s:.1f} GB/s and multiplies "
        f"{ceilings.gemm_tflop_per_s * 1e3:.0f} GFLOP/s in {ceilings.dtype}"
    )
    rows = [
        (
            case.component,
            f"{case.out_features} x {case.in_features}",
            f"{case.num_rows}",
            f"{case.microseconds.median:.1f}",
            f"{case.gb_per_s:.1f}",
            f"{case.gflop_per_s:.0f}",
            f"{result.floor_us(case) / case.microseconds.median:.0%}",
        )
        for case in result.cases
    ]
    return [head, table(("component", "weight", "rows", "us", "GB/s of weights", "GFLOP/s", "of the roof"), rows)]


def comparison_table(found: Sequence[Comparison]) -> Table:
    """One row per figure that both results have."""
    rows = [(each.name, f"{each.first:.4g}", f"{each.second:.4g}", f"{each.ratio:.3f}") for each in found]
    return table(("median of", "first", "second", "second / first"), rows)


def quality_table(found: Sequence[Quality]) -> Table:
    """One row per arm."""
    rows = [(each.arm, f"{each.perplexity:.3f}", f"{each.kl:.5f}", f"{each.top_1_agreement:.4f}") for each in found]
    return table(("arm", "perplexity", "KL from the first", "same most likely id"), rows)


def command_table(results: Sequence[CommandResult]) -> Table:
    """One row per command, in milliseconds."""
    rows = [
        (
            found.command,
            f"{found.wall_ms.median:.0f}",
            _spread(found.wall_ms, 1, digits=0),
            f"{found.cpu_ms.median:.0f}",
            ", ".join(f"{name} {ms:.0f}" for name, ms in found.packages.items()),
        )
        for found in results
    ]
    return table(("command", "wall ms", "p10-p90", "CPU ms", "imports (ms)"), rows)


def _spread(values: Distribution, divisor: int, digits: int = 2) -> str:
    return f"{values.p10 / divisor:.{digits}f}-{values.p90 / divisor:.{digits}f}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
