"""`slotwise generate`: prompts in, text out, then one line on what it cost and which components did it.

One prompt is shown as it is generated; several run together and are printed in order. What this file does not know: how engines work.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from slotwise.cli.parameters import AsJson, SetValues
from slotwise.cli.rendering import write_json
from slotwise.cli.run_parameters import (
    ConfigFile,
    FrequencyPenalty,
    IgnoreEos,
    MaxTokens,
    MinP,
    MinTokens,
    ModelSource,
    PresencePenalty,
    RepetitionPenalty,
    Seed,
    Stop,
    StopTokenIds,
    SystemPrompt,
    Temperature,
    TopK,
    TopP,
    load_run_config,
    sampling_params,
)
from slotwise.errors import ConfigError
from slotwise.startup import StartupLedger, keep_ledger, process_age

if TYPE_CHECKING:
    from slotwise.cli.generation import Answer, Run
    from slotwise.cli.prompts import PromptEntry
    from slotwise.engine.llm import LLM
    from slotwise.sampling_params import SamplingParams

DEFAULT_MAX_TOKENS = 256


def generate(
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="Prompts; several run together.")] = None,
    *,
    model: ModelSource = None,
    config: ConfigFile = None,
    set_values: SetValues = None,
    file: Annotated[
        str | None, typer.Option("--file", metavar="FILE", help="More prompts: one per line, or JSONL; - for standard input.")
    ] = None,
    file_format: Annotated[str | None, typer.Option("--format", help="text or jsonl; by default what the file's suffix says.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Send each prompt as a user message, through the model's chat template.")] = False,
    system: SystemPrompt = None,
    max_tokens: MaxTokens = DEFAULT_MAX_TOKENS,
    min_tokens: MinTokens = 0,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
    stop_token_ids: StopTokenIds = None,
    ignore_eos: IgnoreEos = False,
    presence_penalty: PresencePenalty = 0.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    logprobs: Annotated[
        int | None, typer.Option("--logprobs", metavar="N", help="With --json: logprobs of each token and of the N most likely ones.")
    ] = None,
    no_stream: Annotated[bool, typer.Option("--no-stream", help="Print the text when it is complete.")] = False,
    startup: Annotated[bool, typer.Option("--startup", help="Tell where the time up to the first token went.")] = False,
    as_json: AsJson = False,
) -> None:
    """Generate text from one or more prompts."""
    from slotwise.cli.prompts import collect_prompts

    began = process_age()
    if system is not None and not chat:
        raise ConfigError("--system is a message of a conversation; give --chat with it.")
    if logprobs is not None and not as_json:
        raise ConfigError("--logprobs are printed as JSON only; give --json with it.")
    params = sampling_params(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        stop=stop,
        stop_token_ids=stop_token_ids,
        ignore_eos=ignore_eos,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        logprobs=logprobs,
    )
    loaded = load_run_config(model, config, set_values)
    entries = collect_prompts(prompts or (), file, file_format)
    if chat:
        entries = [entry.as_chat(system) for entry in entries]
    from slotwise.cli.engine_loading import open_llm

    with keep_ledger() as ledger:
        ledger.add("Python, command line, imports of the command", began or 0.0)
        with open_llm(loaded) as llm:
            run = _run(llm, entries, params, as_json=as_json, streams=not no_stream)
            _report(llm, run, as_json=as_json, startup=_startup(ledger, run) if startup else None)
    _exit(run)


def _startup(ledger: StartupLedger, run: Run) -> dict[str, float]:
    """Seconds of each stage, the first token's last."""
    outputs = [answer.output for answer in run.answers if answer.output is not None and answer.output.metrics is not None]
    first = [seconds for output in outputs if output.metrics and (seconds := output.metrics.time_to_first_token) is not None]
    return ledger.stages | {"first token": min(first, default=0.0)}


def _run(llm: LLM, entries: Sequence[PromptEntry], params: SamplingParams, *, as_json: bool, streams: bool) -> Run:
    """Compute; text goes to stdout, as it is generated if there is one prompt."""
    from slotwise.cli.generation import run_prompts
    from slotwise.cli.run_view import AnswerView, prompts_bar
    from slotwise.sampling_params import OutputKind

    if len(entries) == 1:
        view = AnswerView()
        shows_growth = streams and not as_json
        params.output_kind = OutputKind.CUMULATIVE if shows_growth else OutputKind.FINAL_ONLY
        run = run_prompts(llm, entries, params, view.show if shows_growth else lambda _: None)
        if run.answers[0].error is not None:
            raise run.answers[0].error
        if not as_json:
            view.show(run.answers[0])
            view.end()
        return run
    params.output_kind = OutputKind.FINAL_ONLY
    with prompts_bar(len(entries)) as advance:
        run = run_prompts(llm, entries, params, lambda _: advance())
    if not as_json:
        _write_in_order(run.answers)
    return run


def _write_in_order(answers: Sequence[Answer]) -> None:
    """Each answer below a line that names its prompt."""
    from slotwise.cli.run_view import AnswerView, printable

    for number, answer in enumerate(answers, 1):
        if answer.error is not None:
            sys.stdout.flush()
            typer.echo(f"Error: {answer.entry.where}: {answer.error}", err=True)
            continue
        typer.secho(printable(f"[{number}/{len(answers)}] {answer.entry.title}"), bold=True)
        view = AnswerView()
        view.show(answer)
        view.end()
        typer.echo()


def _report(llm: LLM, run: Run, *, as_json: bool, startup: dict[str, float] | None) -> None:
    from slotwise.cli.run_summary import components_line, measure, run_record, summary_line
    from slotwise.cli.run_view import show_startup, show_summary

    speculation = llm.engine.core.stats().speculation
    if as_json:
        record = run_record(llm.model_name, run.answers, llm.components, was_interrupted=run.was_interrupted, speculation=speculation)
        write_json(record if startup is None else record | {"startup_s": startup})
        return
    start = "interrupted | " if run.was_interrupted else ""
    show_summary(f"{start}{summary_line(measure(run.answers, speculation))} | {components_line(llm.components)}")
    if startup is not None:
        show_startup(startup)


def _exit(run: Run) -> None:
    """Exit code 130 if interrupted, 2 if a prompt was refused, 1 if one failed while it ran."""
    if run.was_interrupted:
        raise typer.Exit(130)
    if any(answer.error is not None for answer in run.answers):
        raise typer.Exit(2)
    failures = [
        answer.output.error or "the engine gave no reason"
        for answer in run.answers
        if answer.output is not None and answer.finish_reason == "error"
    ]
    for failure in failures:
        typer.echo(f"Error: {failure}", err=True)
    if failures:
        raise typer.Exit(1)
