"""`plugins.allow` and `plugins.block`: which of the installed components may be used at all.

An entry names a component everywhere (`name`), in one slot (`slot:name`), or a distribution. Block wins over allow; built-ins need no
allowance. What this file does not know: whether a component works.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slotwise.plugin.discovery import EntryPointInfo, normalized_name
from slotwise.plugin.suggestions import did_you_mean


@dataclass(frozen=True, kw_only=True, slots=True)
class UnmatchedEntry:
    """An entry that names nothing installed."""

    key: str
    """`plugins.allow` or `plugins.block`."""
    entry: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginSelection:
    """The two lists. `allow` None = no list, everything may be used."""

    allow: tuple[str, ...] | None = None
    block: tuple[str, ...] = ()

    def refusal(self, info: EntryPointInfo) -> tuple[str, str] | None:
        """(cause, cure) if `info` may not be used."""
        for entry in self.block:
            if _names(entry, info):
                return f'plugins.block names "{entry}".', f'remove "{entry}" from plugins.block.'
        if self.allow is None or info.is_builtin or any(_names(entry, info) for entry in self.allow):
            return None
        return "plugins.allow does not name it.", f'add "{info.key}" or "{info.distribution}" to plugins.allow.'

    def unmatched(self, infos: Sequence[EntryPointInfo]) -> tuple[UnmatchedEntry, ...]:
        """Entries that match nothing in `infos`: most likely mistyped, and without effect."""
        lists = (("plugins.allow", self.allow or ()), ("plugins.block", self.block))
        return tuple(
            UnmatchedEntry(key=key, entry=entry, message=_unmatched_message(key, entry, infos))
            for key, entries in lists
            for entry in entries
            if not any(_names(entry, info) for info in infos)
        )


def _names(entry: str, info: EntryPointInfo) -> bool:
    return entry in (info.name, info.key) or normalized_name(entry) == normalized_name(info.distribution)


def _unmatched_message(key: str, entry: str, infos: Iterable[EntryPointInfo]) -> str:
    infos = tuple(infos)
    words = {word for info in infos for word in (info.key, info.name, info.distribution)}
    return (
        f'{key} names "{entry}", but no installed component or distribution is called that.{did_you_mean(entry, words)}'
        f" Installed: {', '.join(sorted({info.key for info in infos})) or 'none'}."
    )
