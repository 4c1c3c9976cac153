"""Cases of the `logits_processor` slot: batches that change, rows beside others, outputs that grow, drafts.

A processor is compared with itself, told of the same rows in another way. What this file does not know: what a processor does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from slotwise.interfaces.logits_processor import LogitsRows, RowRequest
from slotwise.testing.processor_batch import ProcessorBatch
from slotwise.testing.processor_kit import MAX_ROWS, VOCAB_SIZE, LogitsProcessorKit, append, edit, equal, growing, plain_rows, shown
from slotwise.testing.verdicts import require

NUM_STEPS: Final = 60
DRAFTS: Final = ((), (4,), (9, 9, 2))


class LogitsProcessorBatchCases(LogitsProcessorKit):
    """One promise each."""

    def test_rows_do_not_depend_on_each_other(self) -> None:
        """A row's result is the same alone and beside others, in any place."""
        requests = self.active_requests()
        for order in (requests, requests[::-1]):
            together = self.applied(order)
            for row, request in enumerate(order):
                alone = self.applied([request], self.logits(len(order))[row : row + 1])
                require(equal(alone[0], together[row]), f"row {row} ({shown(request)}) gets another result alone than beside others")

    def test_rows_without_a_wish_stay_as_they_are(self) -> None:
        """Beside active rows."""
        requests = [request for wish in self.active_requests() for request in (self.request({}, 1), wish)][:MAX_ROWS]
        before, after = self.logits(len(requests)), self.applied(requests)
        for row in range(0, len(requests), 2):
            require(equal(before[row], after[row]), f"row {row} wants nothing, but its logits were changed")

    def test_batch_updates_lead_to_the_same_as_a_new_start(self) -> None:
        """Rows that leave, come, move and change places: after each step as if the batch had always been so."""
        wishes = self.active_requests()
        chance = random.Random(self.seed)
        batch = ProcessorBatch(chance, MAX_ROWS)
        processor = self.make_processor()
        for step in range(NUM_STEPS):
            update = batch.change(wishes, self.request({}, 2))
            processor.update(update)
            found, expected = self.logits(len(batch.rows)), self.applied(batch.rows)
            edit(processor, found, plain_rows(len(batch.rows)))
            wrong = [row for row in range(len(batch.rows)) if not equal(found[row], expected[row])]
            require(not wrong, f"step {step}: rows {wrong} differ from a processor that was told of the batch at once, after {update}")
            for request in batch.rows:
                append(request, chance.randrange(VOCAB_SIZE))

    def test_output_that_grows_is_followed(self) -> None:
        """Tokens that were appended to a row's output since the last step count."""
        wishes = [growing(wish) for wish in self.active_requests()]
        processor = self.started(wishes)
        for token_id in (4, 9, 4, 11, 22, 1, 1):
            found, expected = self.logits(len(wishes)), self.applied([growing(wish) for wish in wishes])
            edit(processor, found, plain_rows(len(wishes)))
            for row, wish in enumerate(wishes):
                require(equal(found[row], expected[row]), f"row {row} ({shown(wish)}) is edited as if its output had not grown")
                append(wish, token_id)

    def test_drafts_count_as_output(self) -> None:
        """A row of logits behind drafts is edited as if they were output."""
        wishes = self.active_requests()
        for drafts in DRAFTS[1:]:
            self._require_as_output(wishes, [drafts] * len(wishes))

    def test_requests_may_have_different_numbers_of_drafts(self) -> None:
        """None, one and three in one batch, also in a batch with requests that wish nothing."""
        wishes = self.active_requests()
        for first in range(len(DRAFTS)):
            self._require_as_output(wishes, [DRAFTS[(first + row) % len(DRAFTS)] for row in range(len(wishes))])
        mixed = [request for wish in wishes for request in (self.request({}, 1), wish)][:MAX_ROWS]
        self._require_as_output(mixed, [DRAFTS[row % len(DRAFTS)] for row in range(len(mixed))])

    def test_drafts_leave_no_trace(self) -> None:
        """After drafts were tried, plain rows are edited as if they never were."""
        wishes = self.active_requests()
        processor = self.started(wishes)
        for drafts in DRAFTS:
            rows = _rows_with_drafts([drafts] * len(wishes))
            edit(processor, self.logits(len(rows.requests)), rows)
            again = self.logits(len(wishes))
            edit(processor, again, plain_rows(len(wishes)))
            require(equal(again, self.applied(wishes)), f"after the drafts {drafts} plain rows are edited as if some had been kept")

    def _require_as_output(self, requests: Sequence[RowRequest], drafts: Sequence[Sequence[int]]) -> None:
        rows = _rows_with_drafts(drafts)
        found = self.logits(len(rows.requests))
        edit(self.started(requests), found, rows)
        for index, (owner, before) in enumerate(zip(rows.requests, rows.drafts, strict=True)):
            longer = growing(requests[owner], [*requests[owner].output_token_ids, *before])
            expected = self.applied([longer], self.logits(len(rows.requests))[index : index + 1])
            require(
                equal(found[index], expected[0]),
                f"behind the drafts {list(before)} a row ({shown(requests[owner])}) is edited otherwise than behind that output",
            )


def _rows_with_drafts(drafts: Sequence[Sequence[int]]) -> LogitsRows:
    """A request with k drafts has k + 1 rows. drafts: of each request."""
    places = [(request, place) for request, of_one in enumerate(drafts) for place in range(len(of_one) + 1)]
    return LogitsRows(
        requests=[request for request, _ in places], drafts=[list(drafts[request][:place]) for request, place in places], has_drafts=True
    )
