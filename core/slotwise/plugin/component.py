"""The record a plug-in returns: everything that can be known of a component without importing its implementation.

Building a `Component` must import no torch, no kernel library and not the implementation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """One implementation of one slot."""

    slot: str
    """`attention`, `scheduler`, ...: a key of `interfaces.version.CONTRACT_VERSIONS`."""
    name: str
    """The name users write in `use = "name"`; equals the entry point's name. Lower snake case."""
    implementation: str
    """`"package.module:Class"`, imported only when the component was chosen."""
    api: str
    """Contract versions it was written for, a PEP 440 specifier such as `">=1.0,<2"`."""
    summary: str
    """One line for listings."""
    capabilities: Any = None
    """The slot's capabilities record (`AttentionCapabilities`, ...), None where the slot has none."""
    options: type[BaseModel] | None = None
    """Pydantic model of `[slot.options]`; None = takes no options. Unknown keys must be forbidden (subclass `ComponentOptions`)."""
    requires: tuple[str, ...] = ()
    """Distributions that must be installed, PEP 508 (`"flashinfer-python>=0.6"`)."""
    unavailable: tuple[str, str] | None = None
    """(cause, cure) where a light look shows that it cannot run here though `requires` is met: a library that was not built, none of
    several packages installed. None = nothing known against it."""
