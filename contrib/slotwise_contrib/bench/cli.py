"""`slotwise bench`: what the engine and its parts cost. Everything heavy is imported when a command runs.

What this file does not know: how anything is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotwise.cli.parameters import AsJson
from slotwise.cli.rendering import write, write_json
from slotwise.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer(help="Measure what the engine and its parts cost, without a model.", no_args_is_help=True)


@app.command("engine-overhead", hidden=True)
@app.command()
def overhead(
    *,
    requests: Annotated[str, typer.Option("--requests", metavar="N,N,...", help="Running requests, each generating.")] = "32,256,2048",
    waiting: Annotated[str, typer.Option("--waiting", metavar="N,N,...", help="Requests that wait for a seat.")] = "0,1000",
    contexts: Annotated[str, typer.Option("--contexts", metavar="N,N,...", help="Prompt lengths, in tokens.")] = "64,2048",
    policy: Annotated[str, typer.Option("--policy", metavar="NAME", help="Scheduler policy.")] = "fcfs",
    kv_cache: Annotated[str, typer.Option("--kv-cache", metavar="NAME", help="KV cache manager.")] = "paged",
    block_size: Annotated[int, typer.Option("--block-size", min=1, help="Tokens per KV block.")] = 16,
    output_kind: Annotated[str, typer.Option("--output-kind", help="delta, cumulative or final_only.")] = "delta",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Visits of each case.")] = 5,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Measured steps per visit.")] = 12,
    as_json: AsJson = False,
) -> None:
    """Measure scheduling, input preparation and output processing per step, with stand-ins for forward and sampler."""
    from slotwise.sampling_params import OutputKind
    from slotwise_contrib.bench.bench_tables import overhead_tables
    from slotwise_contrib.bench.overhead import OverheadPlan, measure
    from slotwise_contrib.bench.step_clock import doubt

    if output_kind not in {kind.value for kind in OutputKind}:
        raise ConfigError(f"--output-kind: given {output_kind!r}; accepted: {', '.join(kind.value for kind in OutputKind)}.")
    plan = OverheadPlan(
        num_running=numbers("--requests", requests, lowest=1),
        num_waiting=numbers("--waiting", waiting, lowest=0),
        context_lens=numbers("--contexts", contexts, lowest=1),
        policy=policy,
        kv_cache=kv_cache,
        block_size=block_size,
        output_kind=OutputKind(output_kind),
        num_rounds=rounds,
        num_steps=steps,
    )
    with _progress("measuring", plan.num_visits, shown=not as_json) as advance:
        result = measure(plan, advance)
    if as_json:
        write_json(result.to_dict())
    else:
        write(*overhead_tables(result))
    if warning := doubt(result.lost_share):
        typer.echo(f"Warning: {warning}", err=True)


@app.command()
def attention(
    *,
    backends: Annotated[str, typer.Option("--backends", metavar="NAME,...", help="Attention backends; `all` = those that fit.")] = "all",
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    rows: Annotated[str, typer.Option("--rows", metavar="N,N,...", help="Rows of the decode batches.")] = "1,8,32",
    contexts: Annotated[str, typer.Option("--contexts", metavar="N,N,...", help="Sequence lengths of the decode rows.")] = "512,4096",
    prompts: Annotated[str, typer.Option("--prompts", metavar="N,N,...", help="Lengths of prompts computed at once.")] = "512,2048",
    heads: Annotated[str, typer.Option("--heads", metavar="Q,KV,DIM", help="Query heads, KV heads, head dimension.")] = "9,3,64",
    dtype: Annotated[str, typer.Option("--dtype", help="Dtype of query, key, value and output.")] = "float32",
    kv_dtype: Annotated[str, typer.Option("--kv-dtype", help="Storage dtype of the cache; auto = the same.")] = "auto",
    block_size: Annotated[int, typer.Option("--block-size", min=1, help="Tokens per KV block.")] = 16,
    window: Annotated[int | None, typer.Option("--window", min=1, help="Sliding window of the layer.")] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Timed calls per backend and shape.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Measure attention backends side by side on the same batches, each with its error against `reference`."""
    from slotwise.plugin.registry import ComponentRegistry
    from slotwise_contrib.bench.attention import measure
    from slotwise_contrib.bench.attention_batch import usual_shapes
    from slotwise_contrib.bench.bench_tables import attention_tables

    num_heads, num_kv_heads, head_dim = _three("--heads", heads)
    shapes = usual_shapes(
        num_rows=numbers("--rows", rows, lowest=1),
        contexts=numbers("--contexts", contexts, lowest=1),
        prompts=numbers("--prompts", prompts, lowest=1),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        kv_dtype=kv_dtype,
        block_size=block_size,
        sliding_window=window,
    )
    names = ComponentRegistry().names("attention") if backends == "all" else [name.strip() for name in backends.split(",")]
    with _progress("measuring", len(shapes), shown=not as_json) as advance:
        result = measure(names, shapes, device=device, num_rounds=rounds, advance=advance)
    if as_json:
        write_json(result.to_dict())
    else:
        write(*attention_tables(result))


@app.command()
def sampler(
    *,
    samplers: Annotated[str, typer.Option("--samplers", metavar="NAME,...", help="Samplers.")] = "torch",
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    batches: Annotated[str, typer.Option("--batches", metavar="N,N,...", help="Rows of a step.")] = "1,32,256",
    vocabularies: Annotated[str, typer.Option("--vocabularies", metavar="N,N,...", help="Ids.")] = "49152,128256",
    settings: Annotated[str, typer.Option("--settings", metavar="NAME,...", help="Which parameters; `all` = each in turn.")] = "all",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Timed steps per sampler and case.")] = 15,
    as_json: AsJson = False,
) -> None:
    """Measure samplers beside transformers' chain of warpers on the same logits."""
    from slotwise_contrib.bench.bench_tables import sampler_table
    from slotwise_contrib.bench.sampler import SETTINGS, SamplerCase, measure

    chosen = list(SETTINGS) if settings == "all" else [name.strip() for name in settings.split(",")]
    for name in chosen:
        if name not in SETTINGS:
            raise ConfigError(f"--settings: given {name!r}; accepted: all, {', '.join(SETTINGS)}.")
    cases = [
        SamplerCase(batch=batch, vocab_size=vocab_size, setting=setting)
        for vocab_size in numbers("--vocabularies", vocabularies, lowest=2)
        for batch in numbers("--batches", batches, lowest=1)
        for setting in chosen
    ]
    names = [name.strip() for name in samplers.split(",")]
    with _progress("measuring", len(cases), shown=not as_json) as advance:
        result = measure(names, cases, device=device, num_rounds=rounds, advance=advance)
    if as_json:
        write_json(result.to_dict())
    else:
        write(sampler_table(result))


ArmOption = Annotated[
    list[str] | None,
    typer.Option("--arm", metavar="KEY=VALUE,...", help="Settings of one engine, such as model.dtype=bfloat16,linear=int8. Repeatable."),
]


@app.command()
def model(
    *,
    source: Annotated[str, typer.Option("-m", "--model", metavar="MODEL", help="Directory, .gguf file or known name.")],
    arms: ArmOption = None,
    workloads: Annotated[str, typer.Option("--workloads", metavar="NAME,...", help="Of W1, W2, W3, W4.")] = "W1,W2,W3,W4",
    runs: Annotated[int, typer.Option("--runs", min=1, help="Counted runs of each workload.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Measure whole engines on fixed workloads, in turns: first token, tokens per second, wall time."""
    from slotwise_contrib.bench.arms import timed_engine
    from slotwise_contrib.bench.bench_tables import model_tables
    from slotwise_contrib.bench.model_runs import chosen_workloads, measure

    chosen = chosen_workloads(workloads)
    engines = {arm or "default": timed_engine(source, arm) for arm in arms or [""]}
    with _progress("measuring", len(chosen) * (runs + 1), shown=not as_json) as advance:
        result = measure(source, engines, chosen, num_runs=runs, advance=advance)
    if as_json:
        write_json(result.to_dict())
    else:
        write(*model_tables(result))


def _workload_command(name: str, workload: str, what: str) -> None:
    """`bench NAME` = `bench model` with one workload."""

    @app.command(name, help=f"Measure {what}: workload {workload} of `bench model`, on several engines in turns.")
    def command(
        *,
        source: Annotated[str, typer.Option("-m", "--model", metavar="MODEL", help="Directory, .gguf file or known name.")],
        arms: ArmOption = None,
        runs: Annotated[int, typer.Option("--runs", min=1, help="Counted runs.")] = 3,
        as_json: AsJson = False,
    ) -> None:
        model(source=source, arms=arms, workloads=workload, runs=runs, as_json=as_json)


_workload_command("latency", "W1", "one stream, first token and tokens per second")
_workload_command("throughput", "W2", "many mixed requests at once")
_workload_command("prefix", "W3", "many requests that share a prefix")
_workload_command("prefill", "W4", "one long prompt")


@app.command()
def startup(
    *,
    source: Annotated[str, typer.Option("-m", "--model", metavar="MODEL", help="Directory, .gguf file or known name.")],
    arm: Annotated[str, typer.Option("--arm", metavar="KEY=VALUE,...", help="Settings of the engine.")] = "",
    runs: Annotated[int, typer.Option("--runs", min=1, help="Processes.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Measure where the time between a process's start and its first token goes."""
    from slotwise_contrib.bench.bench_tables import startup_table
    from slotwise_contrib.bench.command_times import measure_startup

    with _progress("starting", runs + 1, shown=not as_json) as advance:
        found = measure_startup(source, arm, num_runs=runs, advance=advance)
    if as_json:
        write_json({name: asdict(seconds) for name, seconds in found.items()})
    else:
        write(startup_table(found))


@app.command()
def linear(
    *,
    components: Annotated[str, typer.Option("--components", metavar="NAME,...", help="Linear components.")] = "dense,int8,int4,torch",
    shapes: Annotated[
        str, typer.Option("--shapes", metavar="OUTxIN,...", help="Shapes of weights.")
    ] = "960x576,3072x576,576x1536,49152x576",
    rows: Annotated[str, typer.Option("--rows", metavar="N,N,...", help="Rows of activations.")] = "1,8,32,512",
    dtype: Annotated[str, typer.Option("--dtype", help="Dtype of the model.")] = "bfloat16",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Passes over the matrices of a case.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Measure products with weight matrices that are in no cache, beside what the machine can do."""
    from slotwise_contrib.bench.bench_tables import linear_tables
    from slotwise_contrib.bench.linear import measure_linear

    sizes = []
    for text in shapes.split(","):
        words = text.strip().split("x")
        if len(words) != 2 or not all(word.isdecimal() and int(word) for word in words):
            raise ConfigError(f"--shapes: given {text!r}; accepted: OUTxIN,OUTxIN,... such as 3072x576.")
        sizes.append((int(words[0]), int(words[1])))
    names = [name.strip() for name in components.split(",")]
    counts = numbers("--rows", rows, lowest=1)
    with _progress("measuring", len(names) * len(sizes) * len(counts), shown=not as_json) as advance:
        result = measure_linear(names, sizes, counts, dtype=dtype, num_rounds=rounds, advance=advance)
    if as_json:
        write_json(asdict(result))
    else:
        write(*linear_tables(result))


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="A.json", help="What a benchmark printed with --json.")],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="The same benchmark at another time.")],
) -> None:
    """Compare two results of one benchmark: each median of the second over that of the first."""
    from slotwise_contrib.bench.bench_tables import comparison_table
    from slotwise_contrib.bench.comparison import compare_results, read_result

    write(comparison_table(compare_results(read_result(first), read_result(second))))


@app.command()
def steps(
    *,
    source: Annotated[str, typer.Option("-m", "--model", metavar="MODEL", help="Directory, .gguf file or known name.")],
    arm: Annotated[str, typer.Option("--arm", metavar="KEY=VALUE,...", help="Settings of the engine.")] = "",
    batches: Annotated[str, typer.Option("--batches", metavar="N,N,...", help="Running requests.")] = "1,8,32,128",
    contexts: Annotated[str, typer.Option("--contexts", metavar="N,N,...", help="Tokens of each, at a batch of 1.")] = "128,1024,4096,8000",
    waiting: Annotated[str, typer.Option("--waiting", metavar="N,N,...", help="Requests in the queue, at the largest batch.")] = "0,1000",
    steps: Annotated[int, typer.Option("--steps", min=1, help="Timed steps of each case.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Measure steps of decoding as batch, context and queue grow, and what they are made of."""
    from slotwise_contrib.bench.arms import engine
    from slotwise_contrib.bench.bench_tables import shares_table, steps_table
    from slotwise_contrib.bench.decode_steps import DecodeCase, measure_shares, measure_steps

    sizes, lengths = numbers("--batches", batches, lowest=1), numbers("--contexts", contexts, lowest=1)
    cases = [DecodeCase(num_running=size, context_len=lengths[0]) for size in sizes]
    cases += [DecodeCase(num_running=1, context_len=length) for length in lengths[1:]]
    queues = numbers("--waiting", waiting, lowest=0)
    cases += [DecodeCase(num_running=sizes[-1], context_len=lengths[0], num_waiting=count) for count in queues if count]
    seats = f"scheduler.max_num_seqs={sizes[-1]},scheduler.max_num_waiting={max(queues) + sizes[-1]}"
    llm = engine(source, ",".join(part for part in (seats, arm) if part))()
    with _progress("measuring", len(cases), shown=not as_json) as advance:
        found = measure_steps(llm, cases, num_steps=steps, advance=advance)
        try:
            shares = [measure_shares(llm, case, num_steps=steps) for case in (cases[0], cases[len(sizes) - 1])]
        except ValueError as error:
            typer.echo(f"Note: {error}.", err=True)
            shares = []
    if as_json:
        write_json({"steps": [each.to_dict() for each in found], "shares": [asdict(each) for each in shares]})
    else:
        write(steps_table(found), *([shares_table(shares)] if shares else []))


@app.command()
def peers(
    *,
    others: Annotated[
        list[str] | None, typer.Option("--peer", metavar="LABEL=ADAPTER,PYTHON,MODEL", help="Another engine, and the Python that has it.")
    ] = None,
    ours: Annotated[
        list[str] | None, typer.Option("--ours", metavar="LABEL=MODEL,KEY=VALUE,...", help="This engine, under some settings.")
    ] = None,
    workloads: Annotated[str, typer.Option("--workloads", metavar="NAME,...", help="Of W1, W2, W3, W4.")] = "W1,W2,W3,W4",
    runs: Annotated[int, typer.Option("--runs", min=1, help="Counted runs of each workload.")] = 3,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads of each engine.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Measure this engine and others in one interleaved run: start, memory, and the workloads of `bench model`."""
    from tempfile import TemporaryDirectory

    from slotwise_contrib.bench.bench_tables import peers_table
    from slotwise_contrib.bench.model_runs import chosen_workloads
    from slotwise_contrib.bench.peer_runs import PeerSpec, measure_peers

    specs = [*(PeerSpec.ours(text) for text in ours or ()), *(PeerSpec.parse(text) for text in others or ())]
    if not specs:
        raise ConfigError("Nothing to measure; give --ours LABEL=MODEL,... and --peer LABEL=ADAPTER,PYTHON,MODEL.")
    chosen = chosen_workloads(workloads)
    with _progress("measuring", len(chosen) * (runs + 1), shown=not as_json) as advance, TemporaryDirectory() as folder:
        found = measure_peers(specs, chosen, num_runs=runs, num_threads=threads, log_folder=Path(folder), advance=advance)
    if as_json:
        write_json([each.to_dict() for each in found])
    else:
        write(*peers_table(found))


@app.command()
def quality(
    *,
    source: Annotated[str, typer.Option("-m", "--model", metavar="MODEL", help="Directory, .gguf file or known name.")],
    text: Annotated[Path, typer.Option("--text", metavar="FILE", help="What perplexity is measured on.")],
    arms: ArmOption = None,
    windows: Annotated[int, typer.Option("--windows", min=1, help="Pieces of the text.")] = 8,
    window: Annotated[int, typer.Option("--window", min=2, help="Tokens of a piece.")] = 512,
    as_json: AsJson = False,
) -> None:
    """Measure what an arm's weights cost in quality: perplexity, and distance from the first arm."""
    from slotwise_contrib.bench.arms import engine
    from slotwise_contrib.bench.bench_tables import quality_table
    from slotwise_contrib.bench.quality import measure_quality

    engines = {arm or "default": engine(source, arm) for arm in arms or [""]}
    try:
        content = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--text: {text} cannot be read: {error}") from error
    with _progress("measuring", len(engines), shown=not as_json) as advance:
        try:
            found = measure_quality(engines, content, num_windows=windows, window=window, advance=advance)
        except ValueError as error:
            raise ConfigError(f"--text: {error}.") from error
    if as_json:
        write_json([each.to_dict() for each in found])
    else:
        write(quality_table(found))


def _three(option: str, text: str) -> tuple[int, int, int]:
    words = text.split(",")
    if len(words) != 3 or not all(word.strip().isdecimal() and int(word) for word in words):
        raise ConfigError(f"{option}: given {text!r}; accepted: three whole numbers separated by commas, such as 32,8,128.")
    first, second, third = (int(word) for word in words)
    return first, second, third


@app.command()
def plugins(
    runs: Annotated[int, typer.Option("--runs", min=1, help="Processes per command.")] = 7,
    *,
    as_json: AsJson = False,
) -> None:
    """Measure the commands that must answer at once, and list what they import."""
    from slotwise_contrib.bench.bench_tables import command_table
    from slotwise_contrib.bench.command_times import NUM_COMMANDS, measure_commands

    with _progress("running", runs * NUM_COMMANDS, shown=not as_json) as advance:
        results = measure_commands(runs, advance)
    if as_json:
        write_json([result.to_dict() for result in results])
    else:
        write(command_table(results))


def numbers(option: str, text: str, *, lowest: int) -> tuple[int, ...]:
    """A list of numbers as the command line gives it. Raises ConfigError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) >= lowest for word in words):
        raise ConfigError(f"{option}: given {text!r}; accepted: whole numbers from {lowest} on, separated by commas, such as 32,256.")
    return tuple(dict.fromkeys(int(word) for word in words))


@contextmanager
def _progress(title: str, total: int, *, shown: bool) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not shown) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)
