"""From a configuration to what will run: which component fills each slot and each layer, before a single weight is read.

`plan_engine` is what `slotwise explain` shows and what `assembly.build_core` builds; nothing else decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from slotwise.config.engine_config import NO_COMPONENT, AttentionConfig, EngineConfig, SlotConfig, slot_path
from slotwise.engine.kv_layout import negotiate_layout
from slotwise.engine.kv_plan import DTYPE_BYTES, KVPlan, plan_kv_groups
from slotwise.engine.proposer_plan import check_companions, companion_layers, plan_proposer
from slotwise.errors import ConfigError, ModelLoadError, ResolutionError
from slotwise.interfaces.attention import DECODE, DECODER, PHASES, PREFILL, STANDARD_KV_LAYOUTS, AttentionLayer
from slotwise.interfaces.linear import LinearBackend, LinearSetup
from slotwise.interfaces.model import Model, ModelDescription, ModelSetup
from slotwise.interfaces.proposer import Proposer
from slotwise.model_source import ModelSource, find_model
from slotwise.plugin.contract import import_implementation
from slotwise.plugin.machine import MachineDescription, describe_machine
from slotwise.plugin.options import validate_options
from slotwise.plugin.registry import ComponentRegistry
from slotwise.plugin.resolution import Resolution
from slotwise.plugin.resolver import AUTO, resolve_attention, resolve_slot
from slotwise.plugin.states import LoadedComponent, PluginState
from slotwise.startup import stage


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """A component that will run, with its options."""

    loaded: LoadedComponent
    options: BaseModel | None

    @property
    def name(self) -> str:
        return self.loaded.component.name

    def implementation(self) -> type[Any]:
        """Import the class. Raises ContractError or ComponentUnavailableError."""
        return import_implementation(self.loaded)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPlan:
    """Who serves one attention layer."""

    name: str
    kind: str
    prefill: str
    decode: str
    """Names of attention components."""
    prefill_part: str = ""
    decode_part: str = ""
    """Which entry of `[attention]` decided: a layer kind, a phase, or empty for `use`; the `part` of a `Resolution`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPlan:
    """What is decided once the model is known."""

    source: ModelSource
    description: ModelDescription
    instance: Model = field(repr=False)
    """Built without parameters, to learn its layers; the engine loads this very object."""
    max_model_len: int
    """Longest sequence in tokens, unless the pool turns out to hold less."""
    layers: tuple[LayerPlan, ...]
    kv: KVPlan
    kv_dtype: str
    kv_layout: str
    proposer: Proposer | None = field(default=None, repr=False)
    """Built without parameters, like the model; its layers come last in `description.layers`."""


@dataclass(kw_only=True, slots=True)
class EnginePlan:
    """Everything that is decided before the engine is built."""

    config: EngineConfig
    registry: ComponentRegistry
    machine: MachineDescription
    weigh_all: bool = False
    components: dict[str, Chosen] = field(default_factory=dict)
    """Slot -> component; the attention slot is in `attention`."""
    attention: dict[str, Chosen] = field(default_factory=dict)
    """Component name -> component, those that serve some layer."""
    observers: dict[str, Chosen] = field(default_factory=dict)
    logits_processors: dict[str, Chosen] = field(default_factory=dict)
    resolutions: tuple[Resolution, ...] = ()
    model_plan: ModelPlan | None = None
    """None if the configuration names no model: then only the slots chosen without one are decided."""

    @property
    def model(self) -> ModelDescription | None:
        return None if self.model_plan is None else self.model_plan.description

    @property
    def layers(self) -> tuple[LayerPlan, ...]:
        return () if self.model_plan is None else self.model_plan.layers

    @property
    def needs_model(self) -> tuple[str, ...]:
        """Slots left open because the configuration names no model."""
        return ("model", "weights", "attention") if self.model_plan is None else ()

    def candidates(self, slot: str, use: str) -> tuple[PluginState, ...]:
        """The components to weigh: all of the slot for `auto` or for people who want to see them, else only the one named."""
        return self.registry.load_slot(slot) if self.weigh_all else self.registry.candidates(slot, use)


def plan_engine(config: EngineConfig, *, weigh_all: bool = False) -> EnginePlan:
    """Resolve every slot. Raises ConfigError, PluginError or ModelLoadError; each names what to change.

    weigh_all: also weigh the components that were not asked for, so that the trace shows what speaks against them (`explain`).
    """
    registry = ComponentRegistry(allow=config.plugins.allow, block=config.plugins.block, strict=config.plugins.strict)
    plan = EnginePlan(config=config, registry=registry, machine=describe_machine(config.device), weigh_all=weigh_all)
    try:
        _fill(plan)
    except ResolutionError as error:
        error.decided = plan.resolutions
        raise
    return plan


def _fill(plan: EnginePlan) -> None:
    config = plan.config
    for slot, section in (("scheduler", config.scheduler), ("kv_cache", config.kv_cache), ("eviction", config.kv_cache.eviction)):
        _resolve(plan, slot, section)
    speculates = config.proposer.use != NO_COMPONENT
    features = ("speculative",) if speculates else ()
    _resolve(plan, "sampler", config.sampler, logprobs_mode=config.sampler.logprobs_mode, features=features)
    if config.grammar.use != NO_COMPONENT:
        _resolve_grammar(plan)
    if speculates:
        _resolve(plan, "proposer", config.proposer)
    for name in config.observers.use:
        plan.observers[name] = _named(plan, "observer", name, config.observers.options, "observers")
    for name in config.logits_processors.names:
        plan.logits_processors[name] = _named(plan, "logits_processor", name, config.logits_processors.options, "logits_processors")
    if config.model.source is not None:
        plan.model_plan = _plan_model(plan, find_model(config.model.source))


def _resolve_grammar(plan: EnginePlan) -> None:
    """An engine runs without a grammar component unless one is named; requests that need one are then refused, see `sampling_assembly`."""
    try:
        _resolve(plan, "grammar", plan.config.grammar)
    except ResolutionError as error:
        if plan.config.grammar.use != AUTO or error.resolution is None:
            raise
        plan.resolutions += (error.resolution,)


def _named(plan: EnginePlan, slot: str, name: str, options: Mapping[str, Mapping[str, Any]], key: str) -> Chosen:
    """A component of a slot that any number of them fill."""
    loaded = plan.registry.get(slot, name)
    return Chosen(loaded=loaded, options=validate_options(loaded, options.get(name, {}), prefix=f"{key}.options.{name}"))


def _resolve(plan: EnginePlan, slot: str, section: SlotConfig, **needs: Any) -> Chosen:
    resolution = resolve_slot(slot, use=section.use, states=plan.candidates(slot, section.use), machine=plan.machine, **needs)
    return _take(plan, resolution, section.options, prefix=".".join((*slot_path(slot), "options")))


def _take(plan: EnginePlan, resolution: Resolution, options: Mapping[str, Any], *, prefix: str) -> Chosen:
    assert resolution.chosen is not None  # the resolver raises otherwise
    plan.resolutions += (resolution,)
    loaded = plan.registry.get(resolution.slot, resolution.chosen)
    chosen = Chosen(loaded=loaded, options=validate_options(loaded, options, prefix=prefix))
    if resolution.slot != "attention":
        plan.components[resolution.slot] = chosen
    return chosen


def _plan_model(plan: EnginePlan, source: ModelSource) -> ModelPlan:
    """Choose model, weights and attention. The model is built without parameters to learn its layers."""
    config = plan.config
    dtype: str = config.model.dtype
    if dtype == "auto":
        dtype = "float32" if plan.machine.device_type == "cpu" else source.dtype
    description = ModelDescription(
        architecture=source.architecture,
        dtype=dtype,
        vocab_size=source.vocab_size,
        max_model_len=source.max_model_len,
        layers=(),
        weights_suffix=source.weights_suffix,
    )
    _resolve(plan, "model", config.model, model=description)
    _resolve_linear(plan, dtype)
    max_model_len = _max_model_len(config, source.max_model_len)
    model = make_model(plan, source, dtype=dtype, max_model_len=max_model_len)
    description = dataclasses.replace(description, vocab_size=model.vocab_size, layers=model.attention_layers)
    _resolve(plan, "weights", config.weights, model=description)
    proposer = plan_proposer(plan, model, dtype=dtype, max_model_len=max_model_len)
    companions = () if proposer is None else companion_layers(proposer, first_index=len(description.layers))
    description = dataclasses.replace(description, layers=(*model.attention_layers, *companions))
    _check_layers(description)
    layers = _plan_layers(plan, description)
    kv_dtype = _storage_dtype(config, dtype)
    if companions:
        check_companions(plan, kv_dtype=kv_dtype, dtype=dtype)
    kv_plan = plan_kv_groups(model.attention_layers, block_size=config.kv_cache.block_size, kv_dtype=kv_dtype, companions=companions)
    _check_pool_size(plan, kv_plan)
    return ModelPlan(
        source=source,
        description=description,
        instance=model,
        max_model_len=max_model_len,
        layers=layers,
        kv=kv_plan,
        kv_dtype=kv_dtype,
        kv_layout=_agree_on_layout(plan),
        proposer=proposer,
    )


def _resolve_linear(plan: EnginePlan, dtype: str) -> None:
    """Raises ConfigError if one is named, but the model does not use it."""
    model = plan.components["model"]
    if model.loaded.component.capabilities.uses_linear:
        _resolve(plan, "linear", plan.config.linear, dtype=dtype)
    elif plan.config.linear.use != AUTO:
        raise ConfigError(
            f"linear.use is {plan.config.linear.use}, but the model component {model.name} keeps its matrices in a way of its own. Choose "
            'one that uses the slot (model.use = "fused", for architectures it knows), or leave linear.use at auto.',
            key="linear.use",
        )


def _make_linear(plan: EnginePlan, dtype: str) -> LinearBackend | None:
    chosen = plan.components.get("linear")
    if chosen is None:
        return None
    made: LinearBackend = chosen.implementation()(LinearSetup(dtype=dtype, device=plan.machine.device, options=chosen.options))
    return made


def make_model(plan: EnginePlan, source: ModelSource, *, dtype: str, max_model_len: int) -> Model:
    """A model without parameters, by the component chosen for the slot."""
    chosen = plan.components["model"]
    with stage("import of the model"):
        implementation = chosen.implementation()
    with stage("model without weights"):
        model: Model = implementation(
            ModelSetup(
                hf_config=source.hf_config,
                dtype=dtype,
                device=plan.machine.device,
                max_model_len=max_model_len,
                seed=plan.config.seed,
                linear=_make_linear(plan, dtype),
                options=chosen.options,
            )
        )
    return model


def _check_layers(model: ModelDescription) -> None:
    """Raises ModelLoadError for layers that a backend may serve, but this engine cannot feed: it caches decoder tokens alone."""
    others = [layer.name for layer in model.layers if layer.attention_type != DECODER]
    if others:
        raise ModelLoadError(
            f"{model.architecture} has layers that do not attend to earlier tokens of their own sequence ({', '.join(others[:4])}); "
            "the engine runs decoder-only models."
        )


def _storage_dtype(config: EngineConfig, model_dtype: str) -> str:
    wanted = config.kv_cache.dtype
    if wanted != "auto" and wanted not in DTYPE_BYTES:
        raise ConfigError(
            f'kv_cache.dtype is "{wanted}", of which the size is not known; known are auto, {", ".join(DTYPE_BYTES)}.', key="kv_cache.dtype"
        )
    return model_dtype if wanted == "auto" else wanted


def _check_pool_size(plan: EnginePlan, kv_plan: KVPlan) -> None:
    """Raises ConfigError for a pool that the device cannot hold."""
    section, available = plan.config.kv_cache, plan.machine.memory_bytes
    wanted = (section.num_blocks or 0) * kv_plan.bytes_per_block + (section.memory_mib or 0) * 2**20
    if available and wanted > available:
        key = "kv_cache.num_blocks" if section.num_blocks is not None else "kv_cache.memory_mib"
        raise ConfigError(
            f"{key} asks for a KV pool of {wanted / 2**30:.1f} GiB (one block takes {kv_plan.bytes_per_block / 2**10:.0f} KiB), "
            f"but {plan.machine.device_name} has {available / 2**30:.1f} GiB in all. Lower it.",
            key=key,
        )


def _max_model_len(config: EngineConfig, limit: int) -> int:
    wanted = config.model.max_model_len or limit
    if wanted > limit:
        raise ConfigError(
            f"model.max_model_len is {wanted}, but the model was made for {limit} positions. Lower it.", key="model.max_model_len"
        )
    scheduler = config.scheduler
    if not scheduler.enable_chunked_prefill and scheduler.max_num_batched_tokens < wanted:
        raise ConfigError(
            "Without scheduler.enable_chunked_prefill a prompt must fit one step: scheduler.max_num_batched_tokens is "
            f"{scheduler.max_num_batched_tokens}, sequences may have {wanted} tokens. Raise the former or lower model.max_model_len.",
            key="scheduler.max_num_batched_tokens",
        )
    return wanted


def _plan_layers(plan: EnginePlan, model: ModelDescription) -> tuple[LayerPlan, ...]:
    """A backend for each layer and phase: `per_kind` first, then `per_phase`, then `use`."""
    section = plan.config.attention
    served: dict[str, list[AttentionLayer]] = {}
    for layer in model.layers:
        for phase in PHASES:
            members = served.setdefault(_part(section, layer, phase), [])
            if layer not in members:
                members.append(layer)
    backend_of_part = {part: _resolve_backend(plan, model, part, layers) for part, layers in served.items()}
    planned = tuple(
        LayerPlan(
            name=layer.name,
            kind=layer.kind,
            prefill=backend_of_part[_part(section, layer, PREFILL)],
            decode=backend_of_part[_part(section, layer, DECODE)],
            prefill_part=_part(section, layer, PREFILL),
            decode_part=_part(section, layer, DECODE),
        )
        for layer in model.layers
    )
    _refuse_fused_splits(plan, planned)
    return planned


def _part(section: AttentionConfig, layer: AttentionLayer, phase: str) -> str:
    """Which entry of `[attention]` decides for a layer in a phase; empty for `use`."""
    if layer.kind in section.per_kind:
        return layer.kind
    return phase if phase in section.per_phase else ""


def _resolve_backend(plan: EnginePlan, model: ModelDescription, part: str, layers: Sequence[AttentionLayer]) -> str:
    config = plan.config
    by_part: Mapping[str, SlotConfig] = {
        str(key): value for key, value in (*config.attention.per_kind.items(), *config.attention.per_phase.items())
    }
    choice = by_part[part] if part else config.attention
    resolution = resolve_attention(
        use=choice.use,
        states=plan.candidates("attention", choice.use),
        machine=plan.machine,
        model=model,
        layers=layers,
        part=part,
        kv_dtype=config.kv_cache.dtype,
        block_size=config.kv_cache.block_size,
        kv_layout=config.kv_cache.layout,
        features=("batch_invariant",) if config.attention.batch_invariant else (),
    )
    where = f"per_{'kind' if part in config.attention.per_kind else 'phase'}.{part}." if part else ""
    chosen = _take(plan, resolution, choice.options, prefix=f"attention.{where}options")
    known = plan.attention.setdefault(chosen.name, chosen)
    if known.options != chosen.options:
        raise ConfigError(
            f"attention: {chosen.name} is named twice with different options, but one engine runs one instance of it per KV group. "
            "Give both the same options.",
            key=f"attention.{where}options",
        )
    return chosen.name


def _refuse_fused_splits(plan: EnginePlan, layers: Sequence[LayerPlan]) -> None:
    """A backend that writes KV inside its forward cannot share a layer with another: neither would see the other's tokens in time."""
    for layer in layers:
        for name in {layer.prefill, layer.decode} if layer.prefill != layer.decode else ():
            if plan.attention[name].loaded.component.capabilities.fused_kv_write:
                raise ConfigError(
                    f"attention.per_phase gives {layer.name} to {layer.prefill} (prefill) and {layer.decode} (decode), but {name} writes "
                    "the KV cache inside its forward and must serve both phases. Choose one that writes it separately.",
                    key="attention.per_phase",
                )


def _agree_on_layout(plan: EnginePlan) -> str:
    """One KV layout for all caches, since groups share memory."""
    accepted = {name: chosen.loaded.component.capabilities.kv_layouts for name, chosen in plan.attention.items()}
    layout = plan.config.kv_cache.layout if plan.config.kv_cache.layout != "auto" else negotiate_layout(accepted.values())
    if layout is None:
        offers = "; ".join(f"{backend}: {', '.join(layouts)}" for backend, layouts in accepted.items())
        raise ResolutionError(f"The attention backends agree on no KV layout ({offers}). Choose backends that share one.")
    refuse_copies_of_private_layout(plan, layout)
    return layout


def refuse_copies_of_private_layout(plan: EnginePlan, layout: str) -> None:
    """Raises ConfigError if the KV manager copies blocks whose content only their backend understands."""
    manager = plan.components["kv_cache"]
    if layout not in STANDARD_KV_LAYOUTS and manager.implementation().copies_blocks:
        raise ConfigError(
            f"kv_cache.use is {manager.name}, which copies KV between blocks, but the KV layout {layout} is a backend's own and "
            f'cannot be copied. Choose a backend with a layout of {", ".join(STANDARD_KV_LAYOUTS)}, or kv_cache.use = "paged".',
            key="kv_cache.use",
        )
