"""The proposer of a plan: made without parameters, like the model, so that its layers take part in everything that is decided of layers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from slotwise.errors import ConfigError
from slotwise.interfaces.attention import AttentionLayer
from slotwise.interfaces.model import Model, ModelDescription, ProgressCallback, WeightsSetup
from slotwise.interfaces.proposer import LoadableModel, Proposer, ProposerSetup
from slotwise.model_source import find_model
from slotwise.plugin.resolver import AUTO, resolve_slot

if TYPE_CHECKING:
    from slotwise.engine.plan import EnginePlan

NAME_PREFIX = "draft."
"""Of the layers' names, which must differ from the model's."""


def plan_proposer(plan: EnginePlan, model: Model, *, dtype: str, max_model_len: int) -> Proposer | None:
    """None without speculation. Raises ConfigError for settings that do not go with it."""
    config, chosen = plan.config, plan.components.get("proposer")
    if chosen is None:
        return None
    if config.scheduler.async_scheduling:
        raise ConfigError(
            "proposer and scheduler.async_scheduling do not go together: drafts follow from tokens that it does not know yet. "
            "Turn one of them off.",
            key="scheduler.async_scheduling",
        )
    proposer: Proposer = chosen.implementation()(
        ProposerSetup(
            num_drafts=config.proposer.num_drafts,
            max_num_reqs=config.scheduler.max_num_seqs,
            max_model_len=max_model_len,
            device=plan.machine.device,
            dtype=dtype,
            model=model,
            make_model=lambda source: _loadable_model(plan, source, dtype=dtype, max_model_len=max_model_len),
            seed=config.seed,
            options=chosen.options,
        )
    )
    if proposer.capabilities.needs_hidden_states and not model.gives_hidden_states:
        raise ConfigError(
            f"proposer.use is {chosen.name}, which reads the model's hidden states, but the model component "
            f"{plan.components['model'].name} does not give them. Choose another of the two.",
            key="proposer.use",
        )
    return proposer


def check_companions(plan: EnginePlan, *, kv_dtype: str, dtype: str) -> None:
    """Raises ConfigError for a KV cache that the proposer's own layers cannot use."""
    config, name = plan.config, plan.components["proposer"].name
    if kv_dtype != dtype:
        raise ConfigError(
            f"proposer.use is {name}, which has attention layers; their KV cannot be stored as {kv_dtype}. "
            'Set kv_cache.dtype = "auto", or choose a proposer without layers.',
            key="kv_cache.dtype",
        )
    if config.kv_cache.sanitize:
        raise ConfigError(
            f"kv_cache.sanitize does not know the layers of the proposer {name}; turn one of them off.", key="kv_cache.sanitize"
        )


def companion_layers(proposer: Proposer, *, first_index: int) -> tuple[AttentionLayer, ...]:
    """The proposer's layers under names and indices of their own, behind the model's."""
    return tuple(
        dataclasses.replace(
            layer,
            name=NAME_PREFIX + layer.name,
            index=first_index + place,
            kv_sharing_target=None if layer.kv_sharing_target is None else NAME_PREFIX + layer.kv_sharing_target,
        )
        for place, layer in enumerate(proposer.attention_layers)
    )


def _loadable_model(plan: EnginePlan, source_name: str, *, dtype: str, max_model_len: int) -> LoadableModel:
    from slotwise.engine.plan import make_model

    source = find_model(source_name)
    description = ModelDescription(
        architecture=source.architecture,
        dtype=dtype,
        vocab_size=source.vocab_size,
        max_model_len=source.max_model_len,
        layers=(),
        weights_suffix=source.weights_suffix,
    )
    use = AUTO if plan.config.weights.use == AUTO or source.weights_suffix is not None else plan.config.weights.use
    resolution = resolve_slot("weights", use=use, states=plan.candidates("weights", use), machine=plan.machine, model=description)
    assert resolution.chosen is not None  # the resolver raises otherwise
    loaded = plan.registry.get("weights", resolution.chosen)
    model = make_model(plan, source, dtype=dtype, max_model_len=min(max_model_len, source.max_model_len))

    def load(progress: ProgressCallback | None) -> None:
        from slotwise.plugin.contract import import_implementation

        setup = WeightsSetup(path=source.weights_path, hf_config=source.hf_config, seed=plan.config.seed)
        model.load(import_implementation(loaded)(setup), progress)

    return LoadableModel(model=model, load=load)
