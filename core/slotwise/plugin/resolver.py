"""Which component fills a slot: pure functions from records to a choice and its full trace.

Nothing is imported, measured or read here. The same records give the same answer, and each installed component is weighed by the same
predicates, whoever ships it. What this file does not know: the predicates themselves (`attention_predicates.py`, `predicates.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from slotwise.errors import ComponentNotFoundError, ResolutionError
from slotwise.interfaces.attention import AttentionCapabilities, AttentionLayer
from slotwise.interfaces.model import ModelDescription
from slotwise.plugin.attention_predicates import AttentionNeeds, attention_refusals
from slotwise.plugin.component import Component
from slotwise.plugin.machine import MachineDescription
from slotwise.plugin.predicates import SlotNeeds, slot_preference, slot_refusals
from slotwise.plugin.resolution import Candidate, Refusal, Resolution
from slotwise.plugin.states import PluginState, PluginStatus
from slotwise.plugin.suggestions import did_you_mean

__all__ = ["AUTO", "Candidate", "Refusal", "Resolution", "resolve_attention", "resolve_slot"]

AUTO: Final = "auto"


def resolve_attention(
    *,
    use: str,
    states: Sequence[PluginState],
    machine: MachineDescription,
    model: ModelDescription,
    layers: Sequence[AttentionLayer] | None = None,
    part: str = "",
    dtype: str | None = None,
    kv_dtype: str = "auto",
    block_size: int = 16,
    kv_layout: str = "auto",
    features: Collection[str] = (),
) -> Resolution:
    """The attention backend for `layers` (default: all of the model's) under `use`, a name or `auto`.

    `features` names further boolean capabilities that are needed (`"lse"`, `"cascade"`, `"batch_invariant"`, ...). `dtype` defaults to the
    model's.
    Raises ResolutionError with every reason if nothing fits, ComponentNotFoundError if `use` names nothing in `states`.
    """
    needs = AttentionNeeds(
        machine=machine,
        layers=tuple(model.layers if layers is None else layers),
        dtype=model.dtype if dtype is None else dtype,
        kv_dtype=kv_dtype,
        block_size=block_size,
        kv_layout=kv_layout,
        features=tuple(features),
        part=part,
    )

    def refusals(component: Component) -> list[Refusal]:
        capabilities = component.capabilities
        assert isinstance(capabilities, AttentionCapabilities)  # checked when the record was loaded
        return attention_refusals(capabilities, needs)

    return _resolve(
        slot="attention",
        part=part,
        use=use,
        states=states,
        refusals=refusals,
        preference=lambda component: slot_preference(component, machine),
    )


def resolve_slot(
    slot: str,
    *,
    use: str,
    states: Sequence[PluginState],
    machine: MachineDescription | None = None,
    model: ModelDescription | None = None,
    dtype: str | None = None,
    logprobs_mode: str | None = None,
    features: Collection[str] = (),
) -> Resolution:
    """The component of any other slot under `use`; slots without capabilities (`scheduler`, `kv_cache`, `observer`) are chosen by name.

    What is None is not known and speaks against nobody. Raises as `resolve_attention`.
    """
    needs = SlotNeeds(
        machine=machine,
        model=model,
        dtype=dtype or (model.dtype if model is not None else None),
        logprobs_mode=logprobs_mode,
        features=tuple(features),
    )

    def refusals(component: Component) -> list[Refusal]:
        return slot_refusals(component, needs, is_auto=use == AUTO)

    return _resolve(slot=slot, use=use, states=states, refusals=refusals, preference=lambda component: slot_preference(component, machine))


def _resolve(
    *,
    slot: str,
    part: str = "",
    use: str,
    states: Sequence[PluginState],
    refusals: Callable[[Component], list[Refusal]],
    preference: Callable[[Component], int | None],
) -> Resolution:
    candidates = [_weigh(state, use, refusals, preference) for state in states]
    if use != AUTO and use not in {candidate.name for candidate in candidates}:
        raise _unknown(slot, use, candidates)
    asked = [candidate for candidate in candidates if use in (AUTO, candidate.name)]
    fitting = sorted((item for item in asked if not item.refusals), key=lambda item: (-(item.preference or 0), item.name))
    if not fitting:
        failed = Resolution(slot=slot, part=part, asked=use, chosen=None, reason="no candidate fits", candidates=tuple(candidates))
        raise _refused(failed, asked) from next((state.error for state in states if state.name == use), None)
    best = fitting[0]
    return Resolution(
        slot=slot,
        part=part,
        asked=use,
        chosen=best.name,
        reason=_reason(best, fitting, use),
        candidates=tuple(replace(candidate, chosen=candidate is best) for candidate in candidates),
    )


def _weigh(
    state: PluginState,
    use: str,
    refusals: Callable[[Component], list[Refusal]],
    preference: Callable[[Component], int | None],
) -> Candidate:
    usable = state.status is PluginStatus.LOADED and state.component is not None
    against: list[Refusal] = []
    is_sound = usable or state.status is PluginStatus.UNAVAILABLE
    rank = preference(state.component) if is_sound and state.component is not None else None
    if not usable or state.component is None:
        against.append(
            Refusal(
                predicate="state", wanted="loaded", offered=f"{state.status}: {state.cause}".rstrip(": "), change=state.cure or "load it"
            )
        )
    else:
        against.extend(refusals(state.component))
        if use == AUTO and rank is None:
            against.append(_never_by_auto(state))
    return Candidate(
        name=state.name,
        distribution=state.info.distribution,
        version=state.info.version,
        state=str(state.status),
        preference=rank,
        refusals=tuple(against),
    )


def _never_by_auto(state: PluginState) -> Refusal:
    return Refusal(
        predicate="preference",
        wanted="a preference for this device",
        offered="none: never chosen by auto",
        change=f'name it: use = "{state.name}"',
    )


def _reason(best: Candidate, fitting: Sequence[Candidate], use: str) -> str:
    if use != AUTO:
        return "asked for by name"
    if len(fitting) == 1:
        return "the only candidate that fits"
    tied = [item.name for item in fitting if item.preference == best.preference]
    if len(tied) > 1:
        return f"first by name among {', '.join(tied)}, which share the highest preference {best.preference}"
    return f"highest preference ({best.preference}) of the {len(fitting)} candidates that fit"


def _unknown(slot: str, use: str, candidates: Iterable[Candidate]) -> ComponentNotFoundError:
    names = sorted({candidate.name for candidate in candidates})
    return ComponentNotFoundError(
        f'There is no component "{use}" in the slot {slot}.{did_you_mean(use, names)} Installed: {", ".join(names) or "none"}.'
    )


def _refused(resolution: Resolution, asked: Sequence[Candidate]) -> ResolutionError:
    lines = "".join(f"\n- {candidate.describe()}" for candidate in asked) or "\n- nothing is installed in this slot"
    what = "no candidate fits" if resolution.asked == AUTO else f'"{resolution.asked}" cannot be used'
    return ResolutionError(f'{resolution.where}: use = "{resolution.asked}", but {what}:{lines}', resolution=resolution)
