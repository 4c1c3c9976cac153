"""What became of each installed component: its status with cause and cure, and the error to raise when it is asked for nevertheless."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Final

from slotwise.errors import ComponentConflictError, ComponentUnavailableError, ContractError, PluginError
from slotwise.plugin.component import Component
from slotwise.plugin.discovery import EntryPointInfo


class PluginStatus(enum.StrEnum):
    """Where a component stands."""

    INSTALLED = "installed"
    """Found in the metadata; not imported yet, so nothing more is known."""
    LOADED = "loaded"
    BLOCKED = "blocked"
    """By `plugins.allow` or `plugins.block`; never imported."""
    BROKEN = "broken"
    """Its import or its hook raised."""
    INVALID = "invalid"
    """It answered, but not with a usable record."""
    INCOMPATIBLE = "incompatible"
    """Written for another version of the contract."""
    UNAVAILABLE = "unavailable"
    """Sound, but a distribution it requires is not installed."""
    CONFLICT = "conflict"
    """Its name is registered more than once in the slot; neither is imported."""


DEFECTS: Final = frozenset({PluginStatus.BROKEN, PluginStatus.INVALID, PluginStatus.INCOMPATIBLE, PluginStatus.CONFLICT})
"""Statuses that are somebody's fault: warned of when seen, errors in strict mode."""


class RecordFault(Exception):  # noqa: N818 - not raised to users; carried into a state
    """Why a record cannot be used."""

    def __init__(self, status: PluginStatus, cause: str, cure: str, component: Component | None = None) -> None:
        """component: the record, where it is sound."""
        super().__init__(cause)
        self.component = component
        self.status = status
        self.cause = cause
        self.cure = cure


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedComponent:
    """A usable record, and where it came from."""

    component: Component
    info: EntryPointInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginState:
    """One installed component."""

    info: EntryPointInfo
    status: PluginStatus
    component: Component | None = None
    """The record, if one of the right type was returned; usable only if the status is `loaded`."""
    cause: str = ""
    cure: str = ""
    error: BaseException | None = field(default=None, compare=False)
    """The original failure."""

    @property
    def slot(self) -> str:
        return self.info.slot

    @property
    def name(self) -> str:
        return self.info.name

    def describe(self) -> str:
        """One sentence or two, for logs and errors."""
        text = f"{self.info.key} of {self.info.origin} is {self.status}"
        return text + (f": {self.cause}" if self.cause else "") + (f" Cure: {self.cure}" if self.cure else "")

    def as_error(self) -> PluginError:
        """The error for whoever asks for it; raise it `from state.error`."""
        if self.status is PluginStatus.CONFLICT:
            return ComponentConflictError(f"{self.cause} Cure: {self.cure}")
        if self.status is PluginStatus.INCOMPATIBLE:
            return ContractError(self.describe())
        return ComponentUnavailableError(self.describe())

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        info = self.info
        return {
            "slot": info.slot,
            "name": info.name,
            "distribution": info.distribution,
            "version": info.version,
            "is_builtin": info.is_builtin,
            "entry_point": info.value,
            "status": str(self.status),
            "cause": self.cause,
            "cure": self.cure,
        }
