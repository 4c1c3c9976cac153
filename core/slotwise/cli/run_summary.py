"""What a run cost and who did it: one line for people, plain data for programs.

What this file does not know: how answers come about.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from slotwise.cli.failures import error_record
from slotwise.cli.generation import Answer
from slotwise.interfaces.version import CONTRACT_VERSIONS

if TYPE_CHECKING:
    from slotwise.engine.outputs import Logprob, RequestOutput
    from slotwise.engine.speculation_stats import SpeculationStats
    from slotwise.interfaces.observer import ComponentInUse


@dataclass(frozen=True, kw_only=True, slots=True)
class RunMetrics:
    """Counts and seconds of a run, loading not included."""

    num_prompts: int
    num_prompt_tokens: int
    num_new_tokens: int
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    time_to_first_token_s: float | None
    """Median over the prompts that got a token."""
    duration_s: float | None
    """From the first prompt's arrival to the last one's end."""
    tokens_per_s: float | None
    """New tokens over the duration, so the time spent on prompts counts."""
    num_draft_tokens: int = 0
    """Drafts that were verified."""
    num_accepted_draft_tokens: int = 0


def measure(answers: Sequence[Answer], speculation: SpeculationStats | None = None) -> RunMetrics:
    """Metrics of the answers that have an output. speculation: of an engine that did nothing else."""
    outputs = [answer.output for answer in answers if answer.output is not None]
    num_new_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    first = [seconds for output in outputs if output.metrics and (seconds := output.metrics.time_to_first_token) is not None]
    duration = _duration(outputs)
    return RunMetrics(
        num_prompts=len(answers),
        num_prompt_tokens=sum(len(output.prompt_token_ids) for output in outputs),
        num_new_tokens=num_new_tokens,
        num_cached_tokens=sum(output.num_cached_tokens for output in outputs),
        time_to_first_token_s=statistics.median(first) if first else None,
        duration_s=duration,
        tokens_per_s=num_new_tokens / duration if duration else None,
        num_draft_tokens=0 if speculation is None else speculation.num_draft_tokens,
        num_accepted_draft_tokens=0 if speculation is None else speculation.num_accepted_tokens,
    )


def summary_line(metrics: RunMetrics) -> str:
    """Tokens, times and cache hits in words."""
    parts = [f"{metrics.num_prompt_tokens} prompt + {metrics.num_new_tokens} new tokens"]
    if metrics.time_to_first_token_s is not None:
        typical = "" if metrics.num_prompts == 1 else "median "
        parts.append(f"{typical}first token {metrics.time_to_first_token_s * 1e3:.0f} ms")
    if metrics.tokens_per_s is not None:
        parts.append(f"{metrics.tokens_per_s:.1f} tokens/s")
    parts.append(f"{metrics.num_cached_tokens} cached")
    if metrics.num_draft_tokens:
        parts.append(f"{metrics.num_accepted_draft_tokens} of {metrics.num_draft_tokens} drafts accepted")
    return " | ".join(parts)


def components_line(components: Sequence[ComponentInUse]) -> str:
    """`attention=torch_sdpa scheduler=fcfs ...`, in the order of the contracts."""
    slots = list(CONTRACT_VERSIONS)
    ordered = sorted(components, key=lambda item: slots.index(item.slot) if item.slot in slots else len(slots))
    return " ".join(f"{item.slot}{f'[{item.part}]' if item.part else ''}={item.name}" for item in ordered)


def run_record(
    model: str,
    answers: Sequence[Answer],
    components: Sequence[ComponentInUse],
    *,
    was_interrupted: bool,
    speculation: SpeculationStats | None = None,
) -> dict[str, Any]:
    """What `generate --json` prints."""
    return {
        "model": model,
        "outputs": [answer_record(answer) for answer in answers],
        "metrics": asdict(measure(answers, speculation)),
        "components": [asdict(item) for item in components],
        "interrupted": was_interrupted,
    }


def answer_record(answer: Answer) -> dict[str, Any]:
    """One answer as strict JSON can hold it: an infinite logprob is null."""
    record: dict[str, Any] = {**answer.entry.to_dict(), "text": answer.text, "finish_reason": answer.finish_reason, "error": None}
    if answer.error is not None:
        record["error"] = error_record(answer.error)
    output = answer.output
    if output is None:
        return record
    completion = output.outputs[0]
    if output.error is not None:
        record["error"] = {"type": "EngineError", "message": output.error}
    record.update(
        token_ids=completion.token_ids,
        stop_reason=completion.stop_reason,
        num_prompt_tokens=len(output.prompt_token_ids),
        num_new_tokens=len(completion.token_ids),
        num_cached_tokens=output.num_cached_tokens,
        time_to_first_token_s=None if output.metrics is None else output.metrics.time_to_first_token,
        duration_s=_duration([output]),
    )
    if completion.logprobs is not None:
        record["logprobs"] = [_logprobs_record(position) for position in completion.logprobs]
    return record


def _logprobs_record(position: dict[int, Logprob]) -> list[dict[str, Any]]:
    """The sampled token first."""
    return [
        {
            "token_id": token_id,
            "token": entry.decoded_token,
            "logprob": entry.logprob if math.isfinite(entry.logprob) else None,
            "rank": entry.rank,
        }
        for token_id, entry in position.items()
    ]


def _duration(outputs: Sequence[RequestOutput]) -> float | None:
    times = [output.metrics for output in outputs if output.metrics is not None and output.metrics.finished_time is not None]
    if not times:
        return None
    return max(item.finished_time or item.arrival_time for item in times) - min(item.arrival_time for item in times)
