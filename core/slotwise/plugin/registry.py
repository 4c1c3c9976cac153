"""`ComponentRegistry`: the installed components of every slot, loaded only when asked for.

What this file does not know: which component suits a model or machine (`resolver.py`), and what an implementation looks like
(`contract.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from slotwise.errors import ComponentNotFoundError, ConfigError, PluginError
from slotwise.interfaces.version import CONTRACT_VERSIONS
from slotwise.plugin.discovery import EntryPointInfo, discover_entry_points, normalized_name, sort_entries
from slotwise.plugin.loading import load_record, new_plugin_manager
from slotwise.plugin.selection import PluginSelection
from slotwise.plugin.states import DEFECTS, LoadedComponent, PluginState, PluginStatus
from slotwise.plugin.suggestions import did_you_mean

logger = logging.getLogger(__name__)


class ComponentRegistry:
    """Every installed component with its state. Loading is idempotent; each defect is reported once.

    `entry_points` replaces what is installed. In strict mode the first `get` or `load_slot` loads everything, and any broken, invalid,
    incompatible or conflicting component is an error. Raises ConfigError in strict mode if `allow` or `block` names nothing installed.
    """

    def __init__(
        self,
        *,
        allow: Sequence[str] | None = None,
        block: Sequence[str] = (),
        strict: bool = False,
        entry_points: Iterable[EntryPointInfo] | None = None,
    ) -> None:
        infos = discover_entry_points() if entry_points is None else sort_entries(set(entry_points))
        self.strict = strict
        self._selection = PluginSelection(allow=None if allow is None else tuple(allow), block=tuple(block))
        self._manager = new_plugin_manager()
        self._reported: set[EntryPointInfo] = set()
        self._report_unmatched(infos)
        self._states = {state.info: state for state in _initial_states(infos, self._selection)}

    def get(self, slot: str, name: str) -> LoadedComponent:
        """The usable record of one component; imports that plug-in and no other.

        Raises ComponentNotFoundError, ComponentConflictError, ContractError (another contract version) or ComponentUnavailableError, the
        original failure chained.
        """
        self._enforce_strict()
        state = self.state(slot, name)
        if state.status is not PluginStatus.LOADED or state.component is None:
            raise state.as_error() from state.error
        return LoadedComponent(component=state.component, info=state.info)

    def state(self, slot: str, name: str) -> PluginState:
        """One component's state, loaded if that is possible. Raises ComponentNotFoundError if nobody registers the name."""
        found = [state for state in self.states(slot) if state.name == name]
        if not found:
            raise self._not_found(slot, name)
        usable = [state for state in found if state.status is not PluginStatus.BLOCKED]
        return self._load((usable or found)[0])

    def load_slot(self, slot: str) -> tuple[PluginState, ...]:
        """All components of a slot, loaded as far as possible; defects are logged once each, as warnings."""
        self._enforce_strict()
        states = tuple(self._load(state) for state in self.states(slot))
        for state in states:
            self._report(state)
        return states

    def candidates(self, slot: str, use: str) -> tuple[PluginState, ...]:
        """What the resolver must weigh for `use`: the whole slot for `"auto"`, else that component alone."""
        if use == "auto":
            return self.load_slot(slot)
        self._enforce_strict()
        return (self.state(slot, use),)

    def states(self, slot: str | None = None) -> tuple[PluginState, ...]:
        """What is known by now, without importing anything. Raises ComponentNotFoundError for an unknown slot."""
        if slot is not None and slot not in CONTRACT_VERSIONS:
            raise ComponentNotFoundError(
                f'There is no slot "{slot}".{did_you_mean(slot, CONTRACT_VERSIONS)} The slots are {", ".join(CONTRACT_VERSIONS)}.'
            )
        return tuple(state for state in self._states.values() if slot in (None, state.slot))

    def names(self, slot: str) -> tuple[str, ...]:
        """Names in a slot that are not blocked, in order."""
        return tuple(dict.fromkeys(state.name for state in self.states(slot) if state.status is not PluginStatus.BLOCKED))

    def _load(self, state: PluginState) -> PluginState:
        if state.status is PluginStatus.INSTALLED:
            state = self._states[state.info] = load_record(state.info, self._manager)
        return state

    def _report(self, state: PluginState) -> None:
        if state.status in DEFECTS and state.info not in self._reported:
            self._reported.add(state.info)
            logger.warning("%s", state.describe())

    def _report_unmatched(self, infos: Sequence[EntryPointInfo]) -> None:
        for unmatched in self._selection.unmatched(infos):
            if self.strict:
                raise ConfigError(unmatched.message, key=unmatched.key)
            logger.warning("%s", unmatched.message)

    def _enforce_strict(self) -> None:
        if not self.strict:
            return
        defects = [state for state in map(self._load, self.states()) if state.status in DEFECTS]
        if len(defects) == 1:
            raise defects[0].as_error() from defects[0].error
        if defects:
            lines = "".join(f"\n- {state.describe()}" for state in defects)
            raise PluginError(f"plugins.strict is on, and {len(defects)} installed components are defective:{lines}") from defects[0].error

    def _not_found(self, slot: str, name: str) -> ComponentNotFoundError:
        names = self.names(slot)
        elsewhere = sorted({state.slot for state in self.states() if state.name == name})
        hint = f' "{name}" is a component of the slot {", ".join(elsewhere)}.' if elsewhere else did_you_mean(name, names)
        return ComponentNotFoundError(
            f'There is no component "{name}" in the slot {slot}.{hint} Installed: {", ".join(names) or "none"}.'
            " A third party's must be installed into this environment first; `slotwise plugins` lists what is."
        )


def _initial_states(infos: Sequence[EntryPointInfo], selection: PluginSelection) -> list[PluginState]:
    allowed = [info for info in infos if selection.refusal(info) is None]
    return [_initial_state(info, selection.refusal(info), [other for other in allowed if other.key == info.key]) for info in infos]


def _initial_state(info: EntryPointInfo, refusal: tuple[str, str] | None, namesakes: Sequence[EntryPointInfo]) -> PluginState:
    if refusal is not None:
        return PluginState(info=info, status=PluginStatus.BLOCKED, cause=refusal[0], cure=refusal[1])
    if len(namesakes) == 1:
        return PluginState(info=info, status=PluginStatus.INSTALLED)
    sources = " and ".join(f"{other.origin} ({other.value})" for other in namesakes)
    distributions = list(dict.fromkeys(normalized_name(other.distribution) for other in namesakes))
    if len(distributions) == 1:
        cure = f"let {info.distribution} register each name once."
    else:
        cure = f'uninstall one of {", ".join(distributions)}, or block one: plugins.block = ["{distributions[-1]}"].'
    return PluginState(info=info, status=PluginStatus.CONFLICT, cause=f"{info.key} is registered by {sources}.", cure=cure)
