"""Layers: what one source says, as a flat map from path to setting; and how layers become one.

Rules. A stronger layer wins value by value; lists are replaced whole. `null` unsets: the default holds again, whatever weaker layers say.
When a layer chooses another component for a slot than the layers below it (their default included), the options those
layers gave to that slot are dropped, since they were written for the other component; `Merged.dropped` names them. This file does not know
files, variables or flags.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from slotwise.config.engine_config import ObserversConfig, SlotConfig
from slotwise.config.origins import DroppedOption, Origin
from slotwise.config.shape import Branch, Path, engine_shape


@dataclass(frozen=True, slots=True)
class Setting:
    """One value as written, and where. None = unset."""

    value: Any
    origin: Origin


Layer = dict[Path, Setting]
"""Path of a value, a table entry or (only to unset it) a section -> Setting. Later entries win over earlier ones."""


@dataclass(slots=True)
class Merged:
    """The outcome of all layers."""

    settings: Layer = field(default_factory=dict)
    unset: dict[Path, Origin] = field(default_factory=dict)
    dropped: list[DroppedOption] = field(default_factory=list)


def put(layer: Layer, path: Path, setting: Setting) -> None:
    """Add or replace one entry as the latest."""
    layer.pop(path, None)
    layer[path] = setting


def merge(layers: Sequence[Layer]) -> Merged:
    """Combine layers, weakest first."""
    merged = Merged()
    slots = list(_slots(engine_shape()))
    for layer in layers:
        for slot, section in slots:
            _drop_foreign_options(merged, layer, slot, section)
        for path, setting in layer.items():
            _apply(merged, path, setting)
    return merged


def nest(settings: Layer) -> dict[str, Any]:
    """The settings as nested dictionaries."""
    tree: dict[str, Any] = {}
    for path, setting in settings.items():
        table = tree
        for key in path[:-1]:
            table = table.setdefault(key, {})
        table[path[-1]] = setting.value
    return tree


def _apply(merged: Merged, path: Path, setting: Setting) -> None:
    for other in [other for other in merged.settings if _is_prefix(path, other) or _is_prefix(other, path)]:
        del merged.settings[other]
    for other in [other for other in merged.unset if _is_prefix(path, other)]:
        del merged.unset[other]
    if setting.value is None:
        merged.unset[path] = setting.origin
    else:
        merged.settings[path] = setting


def _drop_foreign_options(merged: Merged, layer: Layer, slot: Path, section: type[SlotConfig | ObserversConfig]) -> None:
    chosen = _last_choice(layer, slot)
    if chosen is None:
        return
    default = section.model_fields["use"].get_default(call_default_factory=True)
    below = merged.settings.get((*slot, "use"))
    old = default if below is None else below.value
    new = default if chosen.value is None else chosen.value
    for path in [path for path in merged.settings if _is_prefix((*slot, "options"), path)]:
        if issubclass(section, ObserversConfig):
            component, keeps = path[len(slot) + 1], path[len(slot) + 1] in new
        else:
            component, keeps = old, new == old
        if not keeps:
            origin = merged.settings.pop(path).origin
            merged.dropped.append(DroppedOption(key=".".join(path), component=component, origin=origin, by=chosen.origin))


def _last_choice(layer: Layer, slot: Path) -> Setting | None:
    paths = [slot[:length] for length in range(1, len(slot) + 1)] + [(*slot, "use")]
    found = [(path, setting) for path, setting in layer.items() if path in paths]
    return found[-1][1] if found else None


def _slots(branch: Branch, prefix: Path = ()) -> Iterable[tuple[Path, type[SlotConfig | ObserversConfig]]]:
    if branch.section is not None and issubclass(branch.section, SlotConfig | ObserversConfig):
        yield prefix, branch.section
    for key, child in branch.children.items():
        if isinstance(child, Branch):
            yield from _slots(child, (*prefix, key))


def _is_prefix(prefix: Path, path: Path) -> bool:
    return path[: len(prefix)] == prefix
