"""`EngineConfig`: every setting of the engine in one pydantic tree. Imports no torch.

Each slot is a section with `use` (a component's name) and `options` (validated later by that component's own model, since names
are open). Field descriptions are the documentation that `config init` and `config schema` print.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, instances are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    shorthand: ClassVar[str | None] = None
    """The key that a bare value in place of the whole section stands for: `attention = "torch_sdpa"`."""

    @model_validator(mode="before")
    @classmethod
    def _expand_shorthand(cls, value: Any) -> Any:
        is_bare = cls.shorthand is not None and isinstance(value, str | list)
        return {cls.shorthand: value} if is_bare else value


class ComponentOptions(BaseModel):
    """Base of components' options models."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SlotConfig(Section):
    """A slot: which component fills it, and that component's options."""

    shorthand: ClassVar[str | None] = "use"

    use: str = Field("auto", description="Component name, or `auto` for the best one that fits.")
    options: dict[str, Any] = Field(default_factory=dict, description="Options of the chosen component; see `slotwise plugins show NAME`.")


class ComponentChoice(SlotConfig):
    """A component for a part of a slot (one layer kind, one phase)."""


class ModelConfig(SlotConfig):
    """The model, and the component that runs it."""

    shorthand: ClassVar[str | None] = "source"

    source: str | None = Field(None, description="A directory, a .gguf file, or a known name (`slotwise models`).")
    tokenizer: str | None = Field(None, description="Directory of another tokenizer; by default the model's own.")
    chat_template: str | None = Field(None, description="Path of a Jinja chat template that replaces the tokenizer's.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="`auto`: float32 on the CPU, else the model's own."
    )
    max_model_len: int | None = Field(
        None, ge=1, description="Longest sequence in tokens, prompt and output; by default the model's own limit."
    )
    served_name: str | None = Field(None, description="Name shown by the server; by default the source.")


class WeightsConfig(SlotConfig):
    """Where the parameters come from; `auto` goes by the files found."""


class LinearConfig(SlotConfig):
    """How weight matrices are stored and multiplied, by models that leave it to this slot; `auto` changes no weight."""


class AttentionConfig(SlotConfig):
    """Attention backend, as a whole, per layer kind, or per phase."""

    per_kind: dict[Literal["full", "sliding_window", "chunked_local"], ComponentChoice] = Field(
        default_factory=dict, description="Backend for layers of one kind, where it differs from `use`."
    )
    per_phase: dict[Literal["prefill", "decode"], ComponentChoice] = Field(
        default_factory=dict, description="Backend for rows of one phase, where it differs from `use`."
    )
    batch_invariant: bool = Field(
        False, description="Only backends whose result for a row does not depend on the rest of the batch, told to keep that at any cost."
    )


class SchedulerConfig(SlotConfig):
    """Scheduling policy, and the limits the core enforces whatever the policy."""

    use: str = Field("fcfs", description="Policy name.")
    max_num_seqs: int = Field(64, ge=1, description="Most requests running at once.")
    max_num_batched_tokens: int = Field(2048, ge=1, description="Most tokens computed in one step.")
    long_prefill_token_threshold: int = Field(0, ge=0, description="Most prompt tokens of one request in a step; 0 = no cap of its own.")
    enable_chunked_prefill: bool = Field(True, description="Whether a prompt may be computed over several steps.")
    reserve_whole_prompt: bool = Field(False, description="Admit a request only when its whole prompt fits into free blocks.")
    async_scheduling: bool = Field(False, description="Schedule the next step while the model computes the last one.")
    max_num_waiting: int | None = Field(None, ge=1, description="Most requests waiting; more are refused. By default no limit.")


class EvictionConfig(SlotConfig):
    """Eviction policy of the prefix cache."""

    use: str = Field("lru", description="Eviction policy name.")


class KVCacheConfig(SlotConfig):
    """KV cache manager and the pool it manages."""

    use: str = Field("paged", description="KV cache manager name.")
    block_size: int = Field(16, ge=1, le=65536, description="Tokens per block.")
    num_blocks: int | None = Field(None, ge=2, description="Usable blocks of the pool; by default from `memory_mib`.")
    memory_mib: int | None = Field(
        None, ge=1, description="Memory of the pool in MiB; by default what full load needs, within a quarter of the free memory."
    )
    enable_prefix_caching: bool = Field(True, description="Reuse the KV of equal prefixes between requests.")
    dtype: str = Field(
        "auto",
        description="Storage dtype; `auto` = the model's. `int8` and `float8_e4m3fn` halve or quarter it, with scales found at the start.",
    )
    layout: str = Field("auto", description="Memory layout (`nhd`, `hnd`, or a backend's own); `auto` = first that all backends accept.")
    hash_seed: str | None = Field(None, description="Fixes the start of hash chains, to share hashes between processes; random by default.")
    sanitize: bool = Field(
        False, description="Debug: find reads and writes of the KV cache that the attention contract forbids. Very slow; use a small pool."
    )
    eviction: EvictionConfig = Field(default_factory=EvictionConfig, description="Which cached block is given up first.")


class SamplerConfig(SlotConfig):
    """Sampler, and what logprobs mean."""

    logprobs_mode: Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"] = Field(
        "raw_logprobs", description="Values reported as logprobs: before (raw) or after (processed) penalties, masks and temperature."
    )
    max_logprobs: int = Field(20, ge=-1, description="Most logprobs a request may ask for per token; -1 = the whole vocabulary.")


class LogitsProcessorsConfig(Section):
    """Logits processors. Each says itself where in the order it runs; `slotwise explain` shows the order."""

    shorthand: ClassVar[str | None] = "add"

    use: list[str] = Field(
        default_factory=lambda: ["allowed_token_ids", "bad_words", "min_tokens", "logit_bias", "thinking_budget", "penalties"],
        description="The processors behind the sampling parameters; replace a name to put another in its place.",
    )
    add: list[str] = Field(default_factory=list, description="Further ones.")
    options: dict[str, dict[str, Any]] = Field(default_factory=dict, description="Processor name -> its options.")

    @field_validator("use", "add", mode="before")
    @classmethod
    def _one_name_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys((*self.use, *self.add)))


class GrammarConfig(SlotConfig):
    """Structured output: the grammar engine, and what it may cost."""

    num_threads: int = Field(2, ge=1, le=4096, description="Threads that compile grammars.")
    max_compile_seconds: float = Field(10.0, gt=0, description="A grammar that takes longer to compile fails its request.")


class ProposerConfig(SlotConfig):
    """Speculative decoding: who drafts tokens for the model to verify."""

    use: str = Field("none", description="Proposer name, such as `ngram`; `none` = no speculation.")
    num_drafts: int = Field(4, ge=1, le=64, description="Most drafts per request and step.")


class ObserversConfig(Section):
    """Observers told of each step."""

    shorthand: ClassVar[str | None] = "use"

    use: list[str] = Field(default_factory=list, description="Names of observer components.")
    options: dict[str, dict[str, Any]] = Field(default_factory=dict, description="Observer name -> its options.")

    @field_validator("use", mode="before")
    @classmethod
    def _one_name_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class PluginsConfig(Section):
    """Which plug-ins may be used."""

    allow: list[str] | None = Field(
        None,
        description="Only these components or distributions (`slot:name`, `name` or a distribution) may be used; built-ins always may.",
    )
    block: list[str] = Field(default_factory=list, description="These may not, built-ins included.")
    strict: bool = Field(False, description="Make every broken, invalid or incompatible plug-in an error, chosen or not.")


class ServerConfig(Section):
    """The HTTP server."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port; 0 = any free one.")
    api_key: str | None = Field(
        None, description="Bearer token that clients must send; never printed.", repr=False, json_schema_extra={"writeOnly": True}
    )


class EngineConfig(Section):
    """Root of the tree."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    weights: WeightsConfig = Field(default_factory=WeightsConfig)
    linear: LinearConfig = Field(default_factory=LinearConfig)
    attention: AttentionConfig = Field(default_factory=AttentionConfig)
    scheduler: SchedulerConfig = Field(default_factory=SchedulerConfig)
    kv_cache: KVCacheConfig = Field(default_factory=KVCacheConfig)
    sampler: SamplerConfig = Field(default_factory=SamplerConfig)
    logits_processors: LogitsProcessorsConfig = Field(default_factory=LogitsProcessorsConfig)
    grammar: GrammarConfig = Field(default_factory=GrammarConfig)
    proposer: ProposerConfig = Field(default_factory=ProposerConfig)
    observers: ObserversConfig = Field(default_factory=ObserversConfig)
    plugins: PluginsConfig = Field(default_factory=PluginsConfig)
    server: ServerConfig = Field(default_factory=ServerConfig)
    device: str = Field("auto", description="`cpu`, `cuda`, `cuda:1`, ...; `auto` = a GPU if there is one.")
    seed: int = Field(0, ge=0, le=2**64 - 1, description="Seed of everything random that has no seed of its own.")
    num_threads: int | None = Field(None, ge=1, le=4096, description="CPU threads of torch; by default all cores this process may use.")


NO_COMPONENT: Final = "none"
"""`use` of a slot that may stay empty."""

SLOT_PATHS: Final[dict[str, tuple[str, ...]]] = {"eviction": ("kv_cache", "eviction")}
"""Slots whose section is not at the top level under their own name -> its path."""


def slot_path(slot: str) -> tuple[str, ...]:
    """Keys from the root to the section of a slot, if it has one."""
    return SLOT_PATHS.get(slot, (slot,))


def slot_section(config: EngineConfig, slot: str) -> SlotConfig | None:
    """The section that chooses the component of a slot; None for slots without one (observers are a list)."""
    section: Any = config
    for key in slot_path(slot):
        section = getattr(section, key, None)
    return section if isinstance(section, SlotConfig) else None
