"""Cases of the `logits_processor` slot: what a processor says of itself, and what no edit may do.

What this file does not know: what a processor does.
"""

from __future__ import annotations

import itertools

import torch

from slotwise.interfaces.logits_processor import BatchUpdate
from slotwise.testing.processor_kit import VOCAB_SIZE, LogitsProcessorKit, edit, equal, growing, plain_rows, shown
from slotwise.testing.verdicts import NotClaimedError, require


class LogitsProcessorClaimCases(LogitsProcessorKit):
    """One rule each."""

    def test_requests_with_defaults_cost_nothing(self) -> None:
        """Rows without a wish leave it inactive."""
        processor = self.started([self.request({}, row) for row in range(3)])
        require(not processor.is_active, "is_active must be false while no row wants anything")

    def test_it_sleeps_when_all_wishes_have_left(self) -> None:
        """Inactive again once the last row that wanted something has left, or was replaced by one that does not."""
        wishes = self.active_requests()
        processor = self.started(wishes)
        require(processor.is_active, "is_active is false although rows want something")
        processor.update(BatchUpdate(num_rows=1, removed=range(len(wishes)), added=[(0, self.request({}, 1))]))
        require(not processor.is_active, "is_active is true although no row that is left wants anything")

    def test_it_does_something(self) -> None:
        """Some of the parameters make it active and change logits."""
        requests = self.active_requests()
        after = self.applied(requests)
        require(not torch.equal(self.logits(len(requests)), after), "an active processor changed no logit of any row")

    def test_the_claim_about_the_argmax_is_true(self) -> None:
        """One that does not claim `changes_argmax` leaves each row's most likely id the most likely, however near the next one is."""
        if self.make_processor().capabilities.changes_argmax:
            raise NotClaimedError("may change the argmax")
        requests = self.active_requests()
        for token_id, scale in itertools.product(range(VOCAB_SIZE), (1.0, 1e-3)):
            logits = self.logits(len(requests)) * scale
            logits[:, token_id] = logits.amax(dim=1) + 0.01 * scale
            after = self.applied(requests, logits)
            wrong = [shown(request) for request, best in zip(requests, after.argmax(dim=1).tolist(), strict=True) if best != token_id]
            require(not wrong, f"changes_argmax is false, but id {token_id} is no longer the most likely one of a row with {wrong}")

    def test_what_apply_returns_is_true(self) -> None:
        """False = no logit was changed."""
        requests = self.active_requests()
        for length in range(8):
            rows = [growing(request, [5] * length) for request in requests]
            processor = self.started(rows)
            if not processor.is_active:
                continue
            before = self.logits(len(rows))
            after = before.clone()
            changed = processor.apply(after, plain_rows(len(rows)))
            require(isinstance(changed, bool), f"apply returned {changed!r}, not a bool")
            require(changed or torch.equal(before, after), "apply returned False, but changed logits")

    def test_logits_stay_numbers(self) -> None:
        """No NaN and no +inf comes about, also where ids are at -inf already."""
        requests = self.active_requests()
        for stride in (1, 2, 3):
            logits = self.logits(len(requests))
            logits[:, ::stride] = -torch.inf
            after = self.applied(requests, logits)
            require(not after.isnan().any(), "NaN came about in logits that had -inf")
            require(not after.isposinf().any(), "+inf came about")

    def test_forbidden_ids_stay_forbidden(self) -> None:
        """What is at -inf stays there, unless the processor forces it: then it is the only id of its row that is left."""
        requests = self.active_requests()
        for first in (0, 1):
            logits = self.logits(len(requests))
            logits[:, first::2] = -torch.inf
            after = self.applied(requests, logits)
            revived = (logits.isneginf() & ~after.isneginf()).any(dim=1)
            is_forced = (~after.isneginf()).sum(dim=1) == 1
            wrong = [shown(requests[row]) for row in torch.nonzero(revived & ~is_forced).flatten().tolist()]
            require(not wrong, f"ids at -inf became possible again in rows with {wrong}")

    def test_equal_steps_are_edited_equally(self) -> None:
        """Nothing piles up: a step that is repeated on an unchanged batch is edited as the first time."""
        requests = self.active_requests()
        processor = self.started(requests)
        first, second = self.logits(len(requests)), self.logits(len(requests))
        edit(processor, first, plain_rows(len(requests)))
        edit(processor, second, plain_rows(len(requests)))
        require(equal(first, second), "the same rows were edited otherwise the second time")
