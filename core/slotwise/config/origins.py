"""Where each value of a configuration came from.

This file does not know how values are read or merged; it holds the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

OriginKind = Literal["default", "file", "environment", "command_line", "keyword"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The source of one value."""

    kind: OriginKind
    where: str = ""
    """`prod.toml:12`, `SLOTWISE_SEED`, `--set seed`, `seed=`; for a default, why it holds although something was written."""

    def __str__(self) -> str:
        if self.kind == "default":
            return f"default ({self.where})" if self.where else "default"
        return self.where

    def to_dict(self) -> dict[str, str]:
        return {"kind": self.kind, "where": self.where}


DEFAULT = Origin(kind="default")


@dataclass(frozen=True, kw_only=True, slots=True)
class DroppedOption:
    """An option that was written for a component which a stronger source replaced."""

    key: str
    component: str
    """The component it was written for."""
    origin: Origin
    """Where the option was written."""
    by: Origin
    """What chose another component."""

    def __str__(self) -> str:
        return f"{self.key} ({self.origin}) was written for {self.component!r} and is dropped: {self.by} chooses another component"

    def to_dict(self) -> dict[str, object]:
        return {"key": self.key, "component": self.component, "origin": self.origin.to_dict(), "by": self.by.to_dict()}


class Origins(Mapping[str, Origin]):
    """Dotted key -> Origin, for every value of the resolved configuration; `dropped` lists the options that took no effect."""

    def __init__(self, origins: Mapping[str, Origin], dropped: Sequence[DroppedOption] = ()) -> None:
        self._origins = dict(origins)
        self.dropped = tuple(dropped)

    def __getitem__(self, key: str) -> Origin:
        return self._origins[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._origins)

    def __len__(self) -> int:
        return len(self._origins)

    def nearest(self, key: str) -> Origin:
        """Origin of `key`, else of the closest table that holds it, else of the first value inside it, else the default."""
        parts = key.split(".")
        for length in range(len(parts), 0, -1):
            found = self._origins.get(".".join(parts[:length]))
            if found is not None:
                return found
        inside = (origin for name, origin in self._origins.items() if name.startswith(key + ".") and origin.kind != "default")
        return next(inside, DEFAULT)
