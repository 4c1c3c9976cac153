"""The engine's logits processors: told of the batch's changes, and bound to the rows of each step.

What this file does not know: what any of them does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slotwise.interfaces.logits_processor import BatchUpdate, LogitsProcessor, LogitsRows

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class BoundEdits:
    """`interfaces.sampler.LogitsEdits` of one step: the processors that have something to do in it."""

    rows: LogitsRows
    early: Sequence[LogitsProcessor]
    late: Sequence[LogitsProcessor]

    @property
    def edits_after_temperature(self) -> bool:
        return bool(self.late)

    def before_argmax(self, logits: torch.Tensor) -> bool:
        return _apply_all(self.early, logits, self.rows)

    def after_temperature(self, scaled: torch.Tensor) -> bool:
        return _apply_all(self.late, scaled, self.rows)


def _apply_all(processors: Sequence[LogitsProcessor], values: torch.Tensor, rows: LogitsRows) -> bool:
    """Whether any of them may have changed something."""
    changed = False
    for processor in processors:
        changed |= processor.apply(values, rows)
    return changed


class LogitsProcessors:
    """All of an engine's, in the order they run."""

    def __init__(self, processors: Sequence[LogitsProcessor]) -> None:
        """processors: those of equal `order` run as they stand here."""
        ordered = sorted(processors, key=lambda processor: processor.capabilities.order)
        self._early = [processor for processor in ordered if processor.capabilities.changes_argmax]
        self._late = [processor for processor in ordered if not processor.capabilities.changes_argmax]

    def update(self, update: BatchUpdate) -> None:
        """Called before a step whose batch differs from the last one's."""
        for processor in (*self._early, *self._late):
            processor.update(update)

    def bind(self, rows: LogitsRows) -> BoundEdits | None:
        """None if nobody has anything to do."""
        early = [processor for processor in self._early if processor.is_active]
        late = [processor for processor in self._late if processor.is_active]
        return BoundEdits(rows, early, late) if early or late else None
