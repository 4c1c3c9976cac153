"""`LogitsProcessorConformance`: the cases of the `logits_processor` slot.

A processor is compared with itself: told of a batch step by step or at once, of a row alone or beside others, of tokens as drafts or as
output, it must do the same. What this file does not know: what a processor does.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import torch

from slotwise.interfaces.logits_processor import (
    BatchUpdate,
    LogitsProcessor,
    LogitsProcessorSetup,
    LogitsRows,
    RowMove,
    RowRequest,
)
from slotwise.sampling_params import SamplingParams
from slotwise.testing.conformance import ComponentConformance
from slotwise.testing.verdicts import NotClaimedError, require

VOCAB_SIZE: Final = 24
MAX_ROWS: Final = 8
NUM_STEPS: Final = 60
EVERYTHING: Final[Sequence[Mapping[str, Any]]] = (
    {"allowed_token_ids": [1, 2, 3, 5, 8, 13]},
    {"min_tokens": 6},
    {"logit_bias": {3: 4.0, 7: -9.0}},
    {"repetition_penalty": 1.7},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"thinking_token_budget": 2},
    {"bad_words": ["x"]},
)
"""Parameters that the built-in processors heed."""


class LogitsProcessorConformance(ComponentConformance):
    """Subclass it in a test module as `class TestMyProcessor(LogitsProcessorConformance): component = "my_processor"`, and say in `params`
    which parameters it heeds if they are not among the built-in ones."""

    slot: ClassVar[str] = "logits_processor"
    params: ClassVar[Sequence[Mapping[str, Any]]] = EVERYTHING
    """Arguments of `SamplingParams`; some of them must make the processor do something."""

    def make_processor(self) -> LogitsProcessor:
        """A processor to examine; override it where the class alone would not do."""
        implementation, options = self.implementation()
        processor: LogitsProcessor = implementation(
            LogitsProcessorSetup(vocab_size=VOCAB_SIZE, max_num_reqs=MAX_ROWS, device="cpu", encode=_encode, options=options)
        )
        return processor

    def test_requests_with_defaults_cost_nothing(self) -> None:
        """Rows without a wish leave it inactive."""
        processor = self.make_processor()
        processor.update(BatchUpdate(num_rows=3, added=[(row, self._request({}, row)) for row in range(3)]))
        require(not processor.is_active, "is_active must be false while no row wants anything")

    def test_it_does_something(self) -> None:
        """Some of the parameters make it active and change logits."""
        requests = self._active()
        before, after = self._applied(requests)
        require(not torch.equal(before, after), "an active processor changed no logit of any row")

    def test_rows_do_not_depend_on_each_other(self) -> None:
        """A row's result is the same alone and beside others, in any place."""
        requests = self._active()
        _, together = self._applied(requests)
        for row, request in enumerate(requests):
            fresh = self.make_processor()
            fresh.update(BatchUpdate(num_rows=1, added=[(0, request)]))
            logits = self._logits(len(requests))[row : row + 1].clone()
            if fresh.is_active:
                fresh.apply(logits, _plain_rows(1))
            require(_equal(logits[0], together[row]), f"row {row} ({_shown(request)}) gets another result alone than beside others")

    def test_rows_without_a_wish_stay_as_they_are(self) -> None:
        """Beside active rows."""
        wishes = self._active()
        requests = [request for wish in wishes for request in (self._request({}, 1), wish)][:MAX_ROWS]
        before, after = self._applied(requests)
        for row in range(0, len(requests), 2):
            require(_equal(before[row], after[row]), f"row {row} wants nothing, but its logits were changed")

    def test_batch_updates_lead_to_the_same_as_a_new_start(self) -> None:
        """Rows that leave, come, move and change places: after each step as if the batch had always been so."""
        wishes = self._active()
        chance = random.Random(self.seed)
        batch = _Batch(chance)
        processor = self.make_processor()
        for step in range(NUM_STEPS):
            update = batch.change(
                [dataclasses.replace(wish, output_token_ids=list(wish.output_token_ids)) for wish in wishes], self._request({}, 2)
            )
            processor.update(update)
            rows = list(batch.rows)
            fresh = self.make_processor()
            fresh.update(BatchUpdate(num_rows=len(rows), added=list(enumerate(rows))))
            found, expected = self._logits(len(rows)), self._logits(len(rows))
            for each, logits in ((processor, found), (fresh, expected)):
                if each.is_active and rows:
                    each.apply(logits, _plain_rows(len(rows)))
            wrong = [row for row in range(len(rows)) if not _equal(found[row], expected[row])]
            require(not wrong, f"step {step}: rows {wrong} differ from a processor that was told of the batch at once, after {update}")
            for request in rows:
                request.output_token_ids.append(chance.randrange(VOCAB_SIZE))  # type: ignore[attr-defined]

    def test_drafts_count_as_output(self) -> None:
        """A row of logits behind drafts is edited as if they were output; and afterwards they never were."""
        wishes = self._active()
        for drafts in ([4], [9, 9, 2]):
            processor = self.make_processor()
            processor.update(BatchUpdate(num_rows=len(wishes), added=list(enumerate(wishes))))
            owners = [row for row in range(len(wishes)) for _ in range(len(drafts) + 1)]
            before = [drafts[:place] for _ in wishes for place in range(len(drafts) + 1)]
            logits = self._logits(len(owners))
            processor.apply(logits, LogitsRows(requests=owners, drafts=before, has_drafts=True))
            for index, (owner, earlier) in enumerate(zip(owners, before, strict=True)):
                longer = dataclasses.replace(wishes[owner], output_token_ids=[*wishes[owner].output_token_ids, *earlier])
                expected = self._alone(longer, self._logits(len(owners))[index])
                require(
                    _equal(logits[index], expected),
                    f"behind the drafts {earlier} a row ({_shown(wishes[owner])}) is edited otherwise than behind that output",
                )
            _, plain = self._applied(wishes)
            again = self._logits(len(wishes))
            processor.apply(again, _plain_rows(len(wishes)))
            require(_equal(again, plain), "after drafts were tried, plain rows are edited as if some had been kept")

    def test_output_that_grows_is_followed(self) -> None:
        """Tokens that were appended to a row's output since the last step count."""
        wishes = [dataclasses.replace(wish, output_token_ids=list(wish.output_token_ids)) for wish in self._active()]
        processor = self.make_processor()
        processor.update(BatchUpdate(num_rows=len(wishes), added=list(enumerate(wishes))))
        for token_id in (4, 9, 4, 11, 22, 1, 1):
            logits = self._logits(len(wishes))
            processor.apply(logits, _plain_rows(len(wishes)))
            for row, wish in enumerate(wishes):
                copy = dataclasses.replace(wish, output_token_ids=list(wish.output_token_ids))
                expected = self._alone(copy, self._logits(len(wishes))[row])
                require(_equal(logits[row], expected), f"row {row} ({_shown(wish)}) is edited as if its output had not grown")
                wish.output_token_ids.append(token_id)  # type: ignore[attr-defined]

    def test_the_claim_about_the_argmax_is_true(self) -> None:
        """One that does not claim `changes_argmax` leaves each row's most likely id the most likely."""
        processor = self.make_processor()
        if processor.capabilities.changes_argmax:
            raise NotClaimedError("may change the argmax")
        requests = self._active()
        before, after = self._applied(requests)
        require(torch.equal(before.argmax(1), after.argmax(1)), "changes_argmax is false, but the most likely id of a row changed")

    def test_what_apply_returns_is_true(self) -> None:
        """False = no logit was changed."""
        requests = self._active()
        for length in range(8):
            rows = [dataclasses.replace(request, output_token_ids=[5] * length) for request in requests]
            processor = self.make_processor()
            processor.update(BatchUpdate(num_rows=len(rows), added=list(enumerate(rows))))
            if not processor.is_active:
                continue
            before = self._logits(len(rows))
            after = before.clone()
            changed = processor.apply(after, _plain_rows(len(rows)))
            require(changed or _equal(before, after), "apply returned False, but changed logits")

    def test_logits_stay_numbers(self) -> None:
        """No NaN comes about, also where ids are at -inf already."""
        requests = self._active()
        logits = self._logits(len(requests))
        logits[:, ::3] = -torch.inf
        processor = self.make_processor()
        processor.update(BatchUpdate(num_rows=len(requests), added=list(enumerate(requests))))
        processor.apply(logits, _plain_rows(len(requests)))
        require(not logits.isnan().any(), "NaN came about in logits that had -inf")
        require(not logits.isposinf().any(), "+inf came about")

    # -- what the cases are made of ----------------------------------------------------------------------------------------

    def _request(self, params: Mapping[str, Any], number: int) -> RowRequest:
        return RowRequest(
            sampling_params=SamplingParams(**{"max_tokens": 1000, **params}),
            prompt_token_ids=[2, 6, _START, 3 + number],
            output_token_ids=[7, 4, 4][: number % 4],
            stop_token_ids=frozenset({5, 20}),
            bad_words_token_ids=[[4, 9], [11]] if params.get("bad_words") else [],
        )

    def _active(self) -> list[RowRequest]:
        """Requests that make it active. Raises NotClaimedError if none does."""
        found = []
        for number, params in enumerate(self.params):
            for length in (number, number + 1):
                request, processor = self._request(params, length), self.make_processor()
                processor.update(BatchUpdate(num_rows=1, added=[(0, request)]))
                if processor.is_active:
                    found.append(request)
        if not found:
            raise NotClaimedError("none of the parameters tried makes it active; subclass the kit and say in `params` which do")
        return found[:MAX_ROWS]

    def _logits(self, num_rows: int) -> torch.Tensor:
        return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(self.seed)) * 3

    def _applied(self, requests: Sequence[RowRequest]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits before and after."""
        processor = self.make_processor()
        processor.update(BatchUpdate(num_rows=len(requests), added=list(enumerate(requests))))
        before = self._logits(len(requests))
        after = before.clone()
        processor.apply(after, _plain_rows(len(requests)))
        return before, after

    def _alone(self, request: RowRequest, logits: torch.Tensor) -> torch.Tensor:
        processor = self.make_processor()
        processor.update(BatchUpdate(num_rows=1, added=[(0, request)]))
        rows = logits[None].clone()
        if processor.is_active:
            processor.apply(rows, _plain_rows(1))
        return rows[0]


_START, _END = 21, 22
"""What `_encode` gives for the markers of thoughts."""


def _encode(text: str) -> list[int]:
    return [_END] if "/" in text else [_START]


def _plain_rows(num_rows: int) -> LogitsRows:
    return LogitsRows(requests=range(num_rows), drafts=((),) * num_rows)


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    return bool(torch.isclose(first, second, rtol=1e-6, atol=1e-6, equal_nan=True).all())


def _shown(request: RowRequest) -> str:
    defaults = SamplingParams()
    params = request.sampling_params
    names = [name.name for name in dataclasses.fields(params) if getattr(params, name.name) != getattr(defaults, name.name)]
    return ", ".join(f"{name}={getattr(params, name)}" for name in names if name != "max_tokens")


class _Batch:
    """Rows as the engine keeps them: dense, changed by difference."""

    def __init__(self, chance: random.Random) -> None:
        self.rows: list[RowRequest] = []
        self._chance = chance

    def change(self, wishes: Sequence[RowRequest], plain: RowRequest) -> BatchUpdate:
        """Some leave, some come into the holes and behind, the last ones move into holes that are left, two may change places."""
        chance, rows = self._chance, self.rows
        removed = sorted(chance.sample(range(len(rows)), chance.randint(0, min(2, len(rows)))))
        holes, added = list(removed), []
        num_new = chance.randint(0, min(3, MAX_ROWS - len(rows) + len(removed)))
        for _ in range(num_new):
            request = plain if chance.random() < 0.3 else chance.choice(wishes)
            request = dataclasses.replace(request, output_token_ids=list(request.output_token_ids))
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
