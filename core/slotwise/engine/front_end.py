"""What both front ends share: the configuration read, the engine built, the processors around the core."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from slotwise.config.engine_config import EngineConfig
from slotwise.config.loading import LoadedConfig, load_config
from slotwise.engine.assembly import build_core, components_in_use
from slotwise.engine.engine_core import EngineCore
from slotwise.engine.input_processor import InputProcessor
from slotwise.engine.output_processor import OutputProcessor
from slotwise.engine.plan import EnginePlan, plan_engine
from slotwise.engine.sampling_assembly import build_grammars, build_processors, processor_setups, request_checks
from slotwise.errors import ConfigError
from slotwise.interfaces.model import Model
from slotwise.interfaces.observer import ComponentInUse
from slotwise.pooling_defaults import read_pooling_defaults
from slotwise.startup import collection_paused, stage
from slotwise.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LoadProgress = Callable[[str, int, int], None]
"""(stage, done, total) -> None; the stage is `"weights"`."""

FLAT_NAMES: Mapping[str, str] = {
    "block_size": "kv_cache.block_size",
    "chat_template": "model.chat_template",
    "dtype": "model.dtype",
    "enable_chunked_prefill": "scheduler.enable_chunked_prefill",
    "enable_prefix_caching": "kv_cache.enable_prefix_caching",
    "kv_cache_dtype": "kv_cache.dtype",
    "long_prefill_token_threshold": "scheduler.long_prefill_token_threshold",
    "max_logprobs": "sampler.max_logprobs",
    "max_model_len": "model.max_model_len",
    "max_num_batched_tokens": "scheduler.max_num_batched_tokens",
    "max_num_seqs": "scheduler.max_num_seqs",
    "num_gpu_blocks_override": "kv_cache.num_blocks",
    "served_model_name": "model.served_name",
    "tokenizer": "model.tokenizer",
}
"""Flat keyword of vLLM's `LLM(...)` -> our key, so that a caller switches by changing an import."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontEnd:
    """A built engine and what stands around its core."""

    plan: EnginePlan
    core: EngineCore
    tokenizer: PreTrainedTokenizerBase | None
    input_processor: InputProcessor
    output_processor: OutputProcessor

    @property
    def config(self) -> EngineConfig:
        return self.plan.config

    @property
    def model_name(self) -> str:
        return self.config.model.served_name or str(self.config.model.source)

    @property
    def max_model_len(self) -> int:
        return self.core.scheduler.limits.max_model_len

    @property
    def components(self) -> Sequence[ComponentInUse]:
        return components_in_use(self.plan)


def resolve_config(
    model: str | None, config: str | os.PathLike[str] | LoadedConfig | EngineConfig | None, overrides: Mapping[str, Any]
) -> EngineConfig:
    """The settings that a front end's arguments ask for. A loaded configuration takes no further overrides."""
    keywords = {FLAT_NAMES.get(name, name): value for name, value in overrides.items()}
    if model is not None:
        keywords["model.source"] = os.fspath(model)
    if isinstance(config, LoadedConfig | EngineConfig):
        if keywords:
            raise ConfigError(f"A loaded configuration is complete; give {', '.join(sorted(keywords))} when it is loaded.")
        return config.config if isinstance(config, LoadedConfig) else config
    return load_config(config, overrides=keywords).config


def build_front_end(config: EngineConfig, progress: LoadProgress | None = None) -> FrontEnd:
    """Plan and build everything. Raises ConfigError, PluginError or ModelLoadError before anything runs."""
    with collection_paused():
        with stage("choice of components"):
            plan = plan_engine(config)
        return front_end_of(plan, progress)


def front_end_of(plan: EnginePlan, progress: LoadProgress | None = None, *, loaded_model: Model | None = None) -> FrontEnd:
    """Build what a plan decided. loaded_model: see `assembly.build_core`."""
    model_plan, config = plan.model_plan, plan.config
    if model_plan is None:
        raise ConfigError(
            "The configuration names no model. Give model.source: a directory, a .gguf file or a known name (`slotwise models`).",
            key="model.source",
        )
    with stage("tokenizer"):
        tokenizer = load_tokenizer(model_plan.source, override=config.model.tokenizer, chat_template=config.model.chat_template)
    on_weights = None if progress is None else partial(progress, "weights")
    processors = processor_setups(plan, model_plan, tokenizer)
    grammars = build_grammars(plan, model_plan, tokenizer)
    with stage("cache, scheduler, attention"):
        core = build_core(
            plan, model_plan, on_weights, loaded_model=loaded_model, processors=build_processors(processors), grammars=grammars
        )
    input_processor = InputProcessor(
        tokenizer=tokenizer,
        vocab_size=model_plan.description.vocab_size,
        max_model_len=model_plan.max_model_len,
        max_kv_tokens=core.scheduler.kv_cache.max_request_tokens(),
        max_logprobs=config.sampler.max_logprobs,
        eos_token_ids=model_plan.source.eos_token_ids,
        check_extras=request_checks(plan, processors, has_grammars=grammars is not None),
        pooling_defaults=read_pooling_defaults(model_plan.source.tokenizer_path) if model_plan.instance.gives_hidden_states else None,
        hidden_size=getattr(model_plan.source.hf_config.get_text_config(), "hidden_size", None),
    )
    return FrontEnd(plan=plan, core=core, tokenizer=tokenizer, input_processor=input_processor, output_processor=OutputProcessor(tokenizer))


class FrontEndOwner(ABC):
    """What `LLM` and `AsyncLLM` have in common: how they are made, and the facts of their engine."""

    front_end: FrontEnd

    def __init__(
        self,
        model: str | None = None,
        *,
        config: str | os.PathLike[str] | LoadedConfig | EngineConfig | None = None,
        progress: LoadProgress | None = None,
        **overrides: Any,
    ) -> None:
        self.front_end = build_front_end(resolve_config(model, config, overrides), progress)
        self._set_up()

    @classmethod
    def from_front_end(cls, front_end: FrontEnd) -> Self:
        """Around an engine that was built by hand (`front_end_of`)."""
        owner = cls.__new__(cls)
        owner.front_end = front_end
        owner._set_up()
        return owner

    @abstractmethod
    def _set_up(self) -> None:
        """Called once, when `front_end` is there."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        return self.front_end.tokenizer

    @property
    def model_name(self) -> str:
        return self.front_end.model_name

    @property
    def max_model_len(self) -> int:
        return self.front_end.max_model_len

    @property
    def components(self) -> Sequence[ComponentInUse]:
        """Which component fills each slot."""
        return self.front_end.components
