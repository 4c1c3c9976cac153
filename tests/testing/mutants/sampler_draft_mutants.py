"""Samplers with one fault each in how they verify drafts, and the case that catches it."""

from __future__ import annotations

import torch

from .plain_sampler import PlainSampler


class AcceptsByAnotherNumber(PlainSampler):
    caught_by = "drafts_do_not_change_what_a_seed_gives"

    def certain(self, drawn, draft, probs):
        kept = float(torch.rand((), generator=self.stream)) < float(probs[draft])
        return draft if kept else self.draw(probs.index_fill(0, torch.tensor([draft]), 0.0), float(torch.rand((), generator=self.stream)))


class KeepsOneDraftTooMany(PlainSampler):
    caught_by = "greedy_drafts_are_kept_while_they_are_the_argmax"

    def verify(self, request, spec, probs, drawn, rules):
        tokens = super().verify(request, spec, probs, drawn, rules)
        return [[*of_one, 0] if len(of_one) <= count else of_one for of_one, count in zip(tokens, spec.num_draft_tokens, strict=True)]


class NoBonusToken(PlainSampler):
    caught_by = "greedy_drafts_are_kept_while_they_are_the_argmax"

    def bonus(self, probs, drawn, row):
        return drawn[row - 1]


class KeepsEveryDraft(PlainSampler):
    caught_by = "certain_drafts_keep_the_distribution"

    def certain(self, drawn, draft, probs):
        return draft


class RecoversFromP(PlainSampler):
    caught_by = "sampled_drafts_keep_the_distribution"

    def rest(self, p, q):
        return p


class AcceptsByP(PlainSampler):
    caught_by = "drafts_of_a_wrong_model_keep_the_distribution"

    def keeps(self, p, q, uniform):
        return uniform < p


class VerifiesAgainstTheWholeSoftmax(PlainSampler):
    caught_by = "truncation_holds_for_drafts"

    def verify(self, request, spec, probs, drawn, rules):
        whole = [row.double().softmax(0) for row in request.logits]
        return super().verify(request, spec, whole, drawn, rules)


class BonusFromTheFirstRow(PlainSampler):
    caught_by = "second_tokens_and_bonus_tokens_follow_their_own_rows"

    def bonus(self, probs, drawn, row):
        return self.draw(probs[0], float(torch.rand((), generator=self.stream)))


class ForgetsEditsOfDraftRows(PlainSampler):
    caught_by = "edits_see_every_row"

    def edit(self, request, logits):
        rows = slice(None) if request.spec_decode is None else request.spec_decode.bonus_indices
        if request.edits is not None:
            edited = logits[rows].clone()
            request.edits.before_argmax(edited)
            logits[rows] = edited
        return logits


class NoLaterEditsWithDrafts(PlainSampler):
    caught_by = "edits_after_temperature_see_every_row"

    def edit_after(self, request, scaled, index):
        return scaled if request.spec_decode is not None else super().edit_after(request, scaled, index)


class OneNumberForKeepingAndReplacing(PlainSampler):
    caught_by = "seeded_drafts_keep_the_distribution"

    def uniform(self, seed, position, purpose):
        return super().uniform(seed, position, 0)


class SampledDraftsDrawByTheirPlace(PlainSampler):
    caught_by = "sampled_drafts_depend_on_nobody_else"
    num_draws = 0

    def uniform(self, seed, position, purpose):
        self.num_draws += 1
        return super().uniform(None if seed is None else seed + self.num_draws * purpose, position, purpose)


class TakesZerosForADistribution(PlainSampler):
    caught_by = "certain_drafts_among_sampled_ones_keep_the_distribution"

    def is_certain(self, q, draft):
        return q is None


class TakesTheFirstDraftsProbabilities(PlainSampler):
    caught_by = "each_draft_has_its_own_probabilities"

    def probs_of_draft(self, spec, place, offset):
        return super().probs_of_draft(spec, place, 0)


class RejectsGreedyDraftsByChance(PlainSampler):
    caught_by = "greedy_drafts_need_no_probabilities"

    def verify(self, request, spec, probs, drawn, rules):
        if spec.draft_probs is None:
            return super().verify(request, spec, probs, drawn, rules)
        return super().verify(request, spec, [row * 0.01 for row in probs], drawn, [each | {"temperature": 1.0} for each in rules])


class SkipsUnusableRowsOfDrafts(PlainSampler):
    caught_by = "unusable_rows_among_drafts"

    def verify(self, request, spec, probs, drawn, rules):
        return super().verify(request, spec, probs, [max(token, 0) for token in drawn], rules)


class SpendsSeedsWithoutDrafts(PlainSampler):
    caught_by = "without_drafts_verification_is_plain_sampling"

    def bonus(self, probs, drawn, row):
        return int(probs[row].argmin())


class GreedyDraftsByChance(PlainSampler):
    caught_by = "mixed_batches_of_drafts"

    def verify(self, request, spec, probs, drawn, rules):
        softmax = [row.double().softmax(0) for row in request.logits]
        found = [self.draw(row, self.uniform(None, 0, 0)) for row in softmax]
        return super().verify(request, spec, probs, found, rules)
