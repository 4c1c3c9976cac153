"""What `slotwise explain` has to say: the engine's plan, or as much of it as can be decided.

Without a model, slots chosen by name are decided and the others stay open; where a slot cannot be filled, its trace is kept beside the
error. What this file does not know: how any of it is printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slotwise.cli.deviation import Deviation, LayerChoice, find_deviations
from slotwise.config.components import AUTO, NamedComponent, check_components, named_components, open_registry
from slotwise.config.engine_config import EngineConfig
from slotwise.config.origins import DroppedOption, Origins
from slotwise.config.problems import raise_problems
from slotwise.errors import ResolutionError, SlotwiseError
from slotwise.interfaces.version import CONTRACT_VERSIONS
from slotwise.plugin.registry import ComponentRegistry
from slotwise.plugin.resolution import Candidate, Refusal, Resolution
from slotwise.plugin.resolver import resolve_slot
from slotwise.plugin.states import PluginState, PluginStatus

if TYPE_CHECKING:
    from slotwise.engine.plan import LayerPlan

NEEDS_MODEL = "needs a model: set model.source"
NEEDS_MODEL_SLOT = "attention"
"""Even by name this slot cannot be judged without a model: its predicates are about the layers."""
SHARED_SLOTS = ("observer", "logits_processor")
"""Those that several components fill at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """Everything `explain` prints."""

    resolutions: tuple[Resolution, ...]
    layers: tuple[LayerChoice, ...] = ()
    deviations: tuple[Deviation, ...] = ()
    """What `--strict` fails over."""
    machine: Any = None
    """A `MachineDescription`, None if the plan failed."""
    model: Any = None
    """A `ModelDescription`, or None."""
    dropped: tuple[DroppedOption, ...] = ()
    failure: SlotwiseError | None = None
    """Why the engine would not start as configured."""

    @property
    def has_open_slots(self) -> bool:
        """Whether some slot was left undecided."""
        return any(resolution.chosen is None for resolution in self.resolutions)


def explain_config(config: EngineConfig, origins: Origins) -> Explanation:
    """Plan the engine and keep the trace. Raises ConfigError for names and options that do not exist, ModelLoadError for the model."""
    registry = open_registry(config)
    raise_problems(check_components(config, origins, registry))
    from slotwise.engine.plan import plan_engine

    try:
        plan = plan_engine(config, weigh_all=True)
    except ResolutionError as error:
        failed = () if error.resolution is None else (error.resolution,)
        found = complete((*error.decided, *failed), config, registry, "not decided: another slot cannot be filled")
        return Explanation(resolutions=found, dropped=origins.dropped, failure=error)
    layers = tuple(_layer_choice(layer) for layer in plan.layers)
    return Explanation(
        resolutions=complete(plan.resolutions, config, registry, NEEDS_MODEL),
        layers=layers,
        deviations=find_deviations(config.attention, layers, plan.resolutions),
        machine=plan.machine,
        model=plan.model,
        dropped=origins.dropped,
    )


def _layer_choice(layer: LayerPlan) -> LayerChoice:
    decided_by = [f"attention.{part}" if part else "attention" for part in (layer.prefill_part, layer.decode_part)]
    return LayerChoice(layer.name, layer.kind, layer.prefill, layer.decode, *decided_by)


def complete(decided: Sequence[Resolution], config: EngineConfig, registry: ComponentRegistry, open_reason: str) -> tuple[Resolution, ...]:
    """`decided`, and a resolution for every other component the configuration names: by name where that is enough, else left open for
    `open_reason`. In the order of the slots."""
    found = list(decided)
    for named in named_components(config):
        if any((one.slot, one.part) == (named.slot, named.part) and named.slot not in SHARED_SLOTS for one in decided):
            continue
        states = registry.load_slot(named.slot)
        if named.name == AUTO or named.slot == NEEDS_MODEL_SLOT:
            found.append(_open_resolution(named, states, open_reason))
        else:
            found.append(_by_name(named, states))
    slots = list(CONTRACT_VERSIONS)
    return tuple(sorted(found, key=lambda one: slots.index(one.slot)))


def _by_name(named: NamedComponent, states: Sequence[PluginState]) -> Resolution:
    try:
        return resolve_slot(named.slot, use=named.name, states=states)
    except ResolutionError as error:
        if error.resolution is None:
            raise
        return error.resolution


def _open_resolution(named: NamedComponent, states: Sequence[PluginState], reason: str) -> Resolution:
    candidates = tuple(_unweighed(state) for state in states)
    return Resolution(slot=named.slot, part=named.part, asked=named.name, chosen=None, reason=reason, candidates=candidates)


def _unweighed(state: PluginState) -> Candidate:
    refusals: tuple[Refusal, ...] = ()
    if state.status is not PluginStatus.LOADED:
        refusals = (Refusal(predicate="state", wanted="loaded", offered=f"{state.status}: {state.cause}", change=state.cure),)
    info = state.info
    return Candidate(
        name=info.name, distribution=info.distribution, version=info.version, state=str(state.status), preference=None, refusals=refusals
    )
