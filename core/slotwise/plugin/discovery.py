"""Entry points of the slots, read from installed metadata alone: no plug-in module is imported here.

What this file does not know: what a component can do, and whether it works.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from slotwise.interfaces.version import CONTRACT_VERSIONS

GROUP_PREFIX: Final = "slotwise."
BUILTIN_DISTRIBUTION: Final = "slotwise"


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryPointInfo:
    """What the metadata says of one component."""

    slot: str
    name: str
    value: str
    """`"module"` or `"module:object"`, the object with the hook implementation."""
    distribution: str
    version: str
    is_builtin: bool = False

    @property
    def key(self) -> str:
        """`slot:name`."""
        return f"{self.slot}:{self.name}"

    @property
    def origin(self) -> str:
        """`distribution version`."""
        return f"{self.distribution} {self.version}".rstrip()


def normalized_name(distribution: str) -> str:
    """One spelling per distribution. Source: PEP 503, normalized names."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def discover_entry_points(path: Sequence[str] | None = None) -> tuple[EntryPointInfo, ...]:
    """All components of all slots on `path` (default: `sys.path`), ordered by slot, name, distribution.

    A distribution found twice counts once: the first on the path, as for imports, and of several in one folder the newest. Two
    distributions with one name in one slot are both returned.
    """
    infos: set[EntryPointInfo] = set()
    for distribution in registering_distributions(path):
        infos.update(_slot_entries(distribution))
    return sort_entries(infos)


def sort_entries(infos: Iterable[EntryPointInfo]) -> tuple[EntryPointInfo, ...]:
    """In the order of the slots, then by name and distribution; independent of the file system."""
    slots = list(CONTRACT_VERSIONS)
    return tuple(sorted(infos, key=lambda info: (slots.index(info.slot), info.name, normalized_name(info.distribution), info.value)))


def _slot_entries(distribution: metadata.Distribution) -> Iterator[EntryPointInfo]:
    name, version = distribution.metadata["Name"], distribution.metadata["Version"] or ""
    for entry in distribution.entry_points:
        slot = entry.group.removeprefix(GROUP_PREFIX)
        if entry.group.startswith(GROUP_PREFIX) and slot in CONTRACT_VERSIONS:
            is_builtin = normalized_name(name) == BUILTIN_DISTRIBUTION
            yield EntryPointInfo(slot=slot, name=entry.name, value=entry.value, distribution=name, version=version, is_builtin=is_builtin)


def registering_distributions(path: Sequence[str] | None = None) -> Iterator[metadata.Distribution]:
    """Distributions on `path` (default: `sys.path`) with an entry point of any group of ours, each distribution once. In no fixed order."""
    seen: set[str] = set()
    for folder in dict.fromkeys(os.path.realpath(entry) for entry in (sys.path if path is None else path)):
        by_name: dict[str, list[metadata.Distribution]] = {}
        for distribution in metadata.distributions(path=[folder]):
            if _may_register(distribution):
                by_name.setdefault(normalized_name(distribution.metadata["Name"]), []).append(distribution)
        for name in by_name.keys() - seen:
            yield _newest(by_name[name])
        seen |= by_name.keys()


def _may_register(distribution: metadata.Distribution) -> bool:
    """Cheap test before the metadata is parsed, which costs most of a listing."""
    text = distribution.read_text("entry_points.txt")
    return text is not None and GROUP_PREFIX in text and bool(distribution.metadata["Name"])


def _newest(distributions: Sequence[metadata.Distribution]) -> metadata.Distribution:
    """An interrupted upgrade leaves two records of one distribution in a folder."""
    if len(distributions) == 1:
        return distributions[0]
    from packaging.version import InvalidVersion, Version

    def key(distribution: metadata.Distribution) -> tuple[Version, str]:
        text = distribution.metadata["Version"] or ""
        try:
            return Version(text), text
        except InvalidVersion:
            return Version("0.dev0"), text

    return max(distributions, key=key)
