"""Records of a choice: who was weighed for a slot, what spoke against each, who was taken and why. Plain data, JSON-able."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """One predicate that one candidate does not meet."""

    predicate: str
    """`device`, `dtype`, `head_dim`, ..."""
    wanted: str
    """What model, machine or configuration need."""
    offered: str
    """What the component claims."""
    change: str
    """The nearest change that would admit the candidate."""

    def describe(self) -> str:
        """For messages."""
        return f"{self.predicate}: wanted {self.wanted}, offered {self.offered} ({self.change})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One installed component of the slot."""

    name: str
    distribution: str
    version: str
    state: str
    """A `PluginStatus`."""
    preference: int | None
    """Rank for `auto` on this device; None = never chosen by `auto`."""
    refusals: tuple[Refusal, ...] = ()
    chosen: bool = False

    def describe(self) -> str:
        """Name and every refusal, for messages."""
        against = "; ".join(refusal.describe() for refusal in self.refusals) or "fits"
        return f"{self.name} ({self.distribution} {self.version}): {against}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    """The outcome for one slot, or one part of it."""

    slot: str
    part: str
    """A layer kind or phase of the attention slot; empty for the whole slot."""
    asked: str
    """The `use` of the configuration."""
    chosen: str | None
    """None if nothing fits; such a resolution travels in `ResolutionError.resolution`."""
    reason: str
    candidates: tuple[Candidate, ...]

    @property
    def where(self) -> str:
        """`attention` or `attention.sliding_window`."""
        return f"{self.slot}.{self.part}" if self.part else self.slot

    @property
    def chosen_candidate(self) -> Candidate | None:
        """The candidate taken."""
        return next((candidate for candidate in self.candidates if candidate.chosen), None)

    def describe(self) -> str:
        """The one log line of the choice: component, distribution, version, and why."""
        taken = self.chosen_candidate
        what = "nothing" if taken is None else f"{taken.name} ({taken.distribution} {taken.version})"
        return f"{self.where}: {what}, asked for {self.asked}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)
