"""Parameters of the commands that run a model: which model, with which settings, sampled how.

Without --temperature a run is greedy, so that the same command gives the same answer; an option that only matters when tokens are drawn at
random (--top-p, --top-k, --min-p, --seed) makes the temperature 1. What this file does not know: engines and prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotwise.errors import ConfigError

if TYPE_CHECKING:
    from slotwise.config.loading import LoadedConfig
    from slotwise.sampling_params import SamplingParams

_SAMPLING = "Sampling"

ModelSource = Annotated[
    str | None, typer.Option("--model", "-m", metavar="MODEL", help="A directory, a .gguf file, or a name that `slotwise models` lists.")
]
ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="Configuration file; -m and --set win over it.")]
SystemPrompt = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message of the conversation.")]

MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Most new tokens of one answer.", rich_help_panel=_SAMPLING)]
MinTokens = Annotated[int, typer.Option("--min-tokens", help="New tokens before anything may end the answer.", rich_help_panel=_SAMPLING)]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        help="0 = always the most likely token. By default 0, or 1 if --top-p, --top-k, --min-p or --seed is given.",
        rich_help_panel=_SAMPLING,
    ),
]
TopP = Annotated[
    float | None, typer.Option("--top-p", help="Draw from the most likely tokens of this total probability.", rich_help_panel=_SAMPLING)
]
TopK = Annotated[int | None, typer.Option("--top-k", help="Draw from this many most likely tokens; 0 = all.", rich_help_panel=_SAMPLING)]
MinP = Annotated[
    float | None, typer.Option("--min-p", help="Drop tokens less likely than this share of the most likely one.", rich_help_panel=_SAMPLING)
]
Seed = Annotated[
    int | None, typer.Option("--seed", help="Seed of the draws; the same seed gives the same answer.", rich_help_panel=_SAMPLING)
]
Stop = Annotated[
    list[str] | None, typer.Option("--stop", metavar="TEXT", help="End before this text. Repeatable.", rich_help_panel=_SAMPLING)
]
StopTokenIds = Annotated[
    list[int] | None, typer.Option("--stop-token-id", metavar="ID", help="End at this token. Repeatable.", rich_help_panel=_SAMPLING)
]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's end token.", rich_help_panel=_SAMPLING)]
PresencePenalty = Annotated[float, typer.Option("--presence-penalty", help="-2 .. 2.", rich_help_panel=_SAMPLING)]
FrequencyPenalty = Annotated[float, typer.Option("--frequency-penalty", help="-2 .. 2.", rich_help_panel=_SAMPLING)]
RepetitionPenalty = Annotated[float, typer.Option("--repetition-penalty", help="Above 0; 1 = none.", rich_help_panel=_SAMPLING)]

_RANDOM_ONLY = ("top_p", "top_k", "min_p", "seed")


def sampling_params(**given: Any) -> SamplingParams:
    """`SamplingParams` from its fields; None stands for an option that was left out. Raises InvalidRequestError naming the field."""
    from slotwise.sampling_params import SamplingParams

    chosen = {name: value for name, value in given.items() if value is not None}
    if "temperature" not in chosen:
        chosen["temperature"] = 1.0 if any(name in chosen for name in _RANDOM_ONLY) else 0.0
    return SamplingParams(**chosen)


def load_run_config(model: str | None, config: Path | None, set_values: Sequence[str] | None) -> LoadedConfig:
    """The settings of a run. Raises ConfigError, also when nothing names a model."""
    from slotwise.config.loading import load_config

    loaded = load_config(config, set_values=set_values or (), overrides={} if model is None else {"model.source": model})
    if loaded.config.model.source is None:
        where = "its [model] section names none" if config is not None else "neither -m nor -c was given"
        raise ConfigError(
            f"No model to run: {where}. Give -m with a directory, a .gguf file or a name that `slotwise models` lists, or name it in a "
            "configuration file as model.source.",
            key="model.source",
        )
    return loaded
