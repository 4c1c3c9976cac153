"""`ProcessorBatch`: rows that come, leave, move and change places, as an engine's do, and what processors are told of it.

What this file does not know: processors, cases.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from slotwise.interfaces.logits_processor import BatchUpdate, RowMove, RowRequest
from slotwise.testing.processor_kit import growing


class ProcessorBatch:
    """Rows as the engine keeps them: dense, changed by difference."""

    def __init__(self, chance: random.Random, max_rows: int) -> None:
        self.rows: list[RowRequest] = []
        """The request of each row."""
        self._chance, self._max_rows = chance, max_rows

    def change(self, wishes: Sequence[RowRequest], plain: RowRequest) -> BatchUpdate:
        """Some leave, some come into the holes and behind, the last ones move into holes that are left, two may change places."""
        chance, rows = self._chance, self.rows
        removed = sorted(chance.sample(range(len(rows)), chance.randint(0, min(2, len(rows)))))
        holes, added = list(removed), []
        num_new = chance.randint(0, min(3, self._max_rows - len(rows) + len(removed)))
        for _ in range(num_new):
            request = plain if chance.random() < 0.3 else chance.choice(wishes)
            request = growing(request)
            row = holes.pop(0) if holes else len(rows)
            if row == len(rows):
                rows.append(request)
            else:
                rows[row] = request
            added.append((row, request))
        moved = []
        while holes:
            last = len(rows) - 1
            if last in holes:
                holes.remove(last)
            else:
                target = holes.pop(0)
                rows[target] = rows[last]
                moved.append(RowMove(source=last, target=target))
            rows.pop()
        if len(rows) > 1 and chance.random() < 0.5:
            first, second = chance.sample(range(len(rows)), 2)
            rows[first], rows[second] = rows[second], rows[first]
            moved.append(RowMove(source=first, target=second, is_swap=True))
        return BatchUpdate(num_rows=len(rows), removed=removed, added=added, moved=moved)
