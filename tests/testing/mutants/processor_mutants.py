"""Logits processors with one fault each, and the case that catches it. All of them bias id 3, by what `logit_bias` says of it, once more
for each 4 in the output."""

from __future__ import annotations

import torch

from slotwise.interfaces.logits_processor import LogitsProcessorCapabilities, RowStatesProcessor


class PlainProcessor(RowStatesProcessor):
    """A correct one."""

    capabilities = LogitsProcessorCapabilities()
    caught_by = ""
    raises = None
    """The exception, where that is how the fault shows."""

    def make_state(self, request):
        bias = (request.sampling_params.logit_bias or {}).get(3)
        return None if bias is None else (bias, request.output_token_ids)

    def amount(self, state, drafts):
        bias, output = state
        return bias * (1 + [*output, *drafts].count(4))

    def apply(self, logits, rows):
        for row, state, drafts in self.active_rows(rows):
            logits[row, 3] += self.amount(state, drafts)
        return True


class AlwaysActive(PlainProcessor):
    caught_by = "requests_with_defaults_cost_nothing"

    @property
    def is_active(self):
        return True


class DoesNothing(PlainProcessor):
    caught_by = "it_does_something"

    def apply(self, logits, rows):
        return False


class SpillsOver(PlainProcessor):
    caught_by = "rows_do_not_depend_on_each_other"

    def apply(self, logits, rows):
        logits[:, 3] += sum(self.amount(state, drafts) for _, state, drafts in self.active_rows(rows))
        return True


class TouchesEveryRow(PlainProcessor):
    caught_by = "rows_without_a_wish_stay_as_they_are"

    def apply(self, logits, rows):
        super().apply(logits, rows)
        logits[:, 0] -= 0.5
        return True


class ForgetsMoves(PlainProcessor):
    caught_by = "batch_updates_lead_to_the_same_as_a_new_start"
    raises = "IndexError"

    def update(self, update):
        super().update(type(update)(num_rows=update.num_rows, removed=update.removed, added=update.added))


class MovesBeforeItAdds(PlainProcessor):
    caught_by = "batch_updates_lead_to_the_same_as_a_new_start"

    def update(self, update):
        super().update(type(update)(num_rows=update.num_rows, removed=update.removed, moved=update.moved))
        super().update(type(update)(num_rows=update.num_rows, added=update.added))


class KeepsWhoLeft(PlainProcessor):
    caught_by = "batch_updates_lead_to_the_same_as_a_new_start"
    raises = "IndexError"

    def update(self, update):
        super().update(type(update)(num_rows=update.num_rows, added=update.added, moved=update.moved))


class IgnoresDrafts(PlainProcessor):
    caught_by = "drafts_count_as_output"

    def amount(self, state, drafts):
        return super().amount(state, ())


class KeepsDrafts(PlainProcessor):
    caught_by = "drafts_leave_no_trace"

    def make_state(self, request):
        state = super().make_state(request)
        return None if state is None else (state[0], list(state[1]))

    def amount(self, state, drafts):
        state[1].extend(drafts)
        return super().amount(state, ())


class CopiesTheOutput(PlainProcessor):
    caught_by = "output_that_grows_is_followed"

    def make_state(self, request):
        state = super().make_state(request)
        return None if state is None else (state[0], tuple(state[1]))


class ClaimsToKeepTheArgmax(PlainProcessor):
    caught_by = "the_claim_about_the_argmax_is_true"
    capabilities = LogitsProcessorCapabilities(changes_argmax=False)

    def amount(self, state, drafts):
        return 50.0


class SaysNothingChanged(PlainProcessor):
    caught_by = "what_apply_returns_is_true"

    def apply(self, logits, rows):
        super().apply(logits, rows)
        return False


class MakesNaN(PlainProcessor):
    caught_by = "logits_stay_numbers"

    def apply(self, logits, rows):
        for row, _, _ in self.active_rows(rows):
            logits[row] -= logits[row].min() if torch.isinf(logits[row]).any() else 0.0
        return super().apply(logits, rows)


class WakesForEver(PlainProcessor):
    caught_by = "it_sleeps_when_all_wishes_have_left"
    has_been_active = False

    @property
    def is_active(self):
        self.has_been_active |= bool(self.states)
        return self.has_been_active


class TakesASwapForAMove(PlainProcessor):
    caught_by = "batch_updates_lead_to_the_same_as_a_new_start"

    def update(self, update):
        moved = [type(move)(source=move.source, target=move.target) for move in update.moved]
        super().update(type(update)(num_rows=update.num_rows, removed=update.removed, added=update.added, moved=moved))


class AssumesEqualNumbersOfDrafts(PlainProcessor):
    caught_by = "requests_may_have_different_numbers_of_drafts"

    def apply(self, logits, rows):
        num_each = len(rows.requests) // (1 + max(rows.requests))
        for index, drafts in enumerate(rows.drafts):
            if (state := self.states.get(index // num_each)) is not None:
                logits[index, 3] += self.amount(state, drafts)
        return True


class EditsTheFirstRowOfARequestOnly(PlainProcessor):
    caught_by = "drafts_count_as_output"

    def apply(self, logits, rows):
        for row, state, drafts in self.active_rows(rows):
            if not drafts:
                logits[row, 3] += self.amount(state, drafts)
        return True


class ClaimsToKeepTheArgmaxOfMostRows(PlainProcessor):
    caught_by = "the_claim_about_the_argmax_is_true"
    capabilities = LogitsProcessorCapabilities(changes_argmax=False)

    def amount(self, state, drafts):
        return 0.02


class Unmasks(PlainProcessor):
    caught_by = "forbidden_ids_stay_forbidden"

    def apply(self, logits, rows):
        for row, state, drafts in self.active_rows(rows):
            logits[row, 3] = logits[row, 3].clamp(min=-1e4) + self.amount(state, drafts)
        return True


class PilesUp(PlainProcessor):
    caught_by = "equal_steps_are_edited_equally"
    num_steps = 0

    def apply(self, logits, rows):
        self.num_steps += 1
        logits[[row for row, _, _ in self.active_rows(rows)], 3] *= self.num_steps
        return super().apply(logits, rows)


class SaysNothingAtAll(PlainProcessor):
    caught_by = "what_apply_returns_is_true"

    def apply(self, logits, rows):
        super().apply(logits, rows)


class EditsACopy(PlainProcessor):
    caught_by = "it_does_something"

    def apply(self, logits, rows):
        return super().apply(logits.clone(), rows)
