"""What differs between two resolved configurations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slotwise.config.loading import LoadedConfig
from slotwise.config.origins import Origin
from slotwise.config.values import flat_values, shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the two values. `is_set` is False where that configuration has no such value (an option, an alternative)."""

    value: Any
    origin: Origin | None
    is_set: bool

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "is_set": self.is_set, "origin": self.origin.to_dict() if self.origin else None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A key whose values differ."""

    key: str
    a: Side
    b: Side

    def to_dict(self) -> dict[str, Any]:
        return {"key": self.key, "a": self.a.to_dict(), "b": self.b.to_dict()}


def differences(a: LoadedConfig, b: LoadedConfig) -> list[Difference]:
    """Keys whose values differ, in the order of the file. Where a value came from is no difference."""
    values_a, values_b = flat_values(a.config), flat_values(b.config)
    found = []
    for path in [*values_a, *(path for path in values_b if path not in values_a)]:
        if path in values_a and path in values_b and _equal(values_a[path], values_b[path]):
            continue
        key = ".".join(path)
        sides = [
            Side(value=shown(path, values.get(path)), origin=loaded.origins.get(key), is_set=path in values)
            for values, loaded in ((values_a, a), (values_b, b))
        ]
        if any(side.is_set and side.value != {} for side in sides):
            found.append(Difference(key=key, a=sides[0], b=sides[1]))
    return found


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b
