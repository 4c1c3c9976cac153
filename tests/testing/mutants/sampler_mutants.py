"""Samplers with one fault each, of the kinds that engines had, and the case that catches it."""

from __future__ import annotations

import torch

from .plain_sampler import PlainSampler


class GreedyTakesTheLast(PlainSampler):
    caught_by = "greedy_rows_take_the_argmax"

    def greedy(self, row):
        return len(row) - 1


class IgnoresTemperature(PlainSampler):
    caught_by = "temperature_divides_the_logits"

    def temper(self, row, temperature):
        return row - row.max()


class MultipliesByTemperature(PlainSampler):
    caught_by = "temperature_divides_the_logits"

    def temper(self, row, temperature):
        return (row - row.max()) * temperature


class DrawsTheBestTooOften(PlainSampler):
    caught_by = "draws_follow_the_softmax"

    def draw(self, probs, uniform):
        return super().draw(probs**1.15, uniform)


class NeverDrawsTheLastId(PlainSampler):
    caught_by = "draws_follow_the_softmax"

    def draw(self, probs, uniform):
        return super().draw(torch.cat((probs[:-1], probs.new_zeros(1))), uniform)


class TopKKeepsOneMore(PlainSampler):
    caught_by = "top_k_keeps_the_most_likely"

    def top_k(self, scaled, k):
        return super().top_k(scaled, k + 1 if k else 0)


class TopKCutsTies(PlainSampler):
    caught_by = "ties_with_the_kth_stay"

    def top_k(self, scaled, k):
        if not 0 < k < len(scaled):
            return scaled
        return torch.full_like(scaled, -torch.inf).index_copy(0, scaled.topk(k).indices, scaled.topk(k).values)


class TopPDropsTheOneThatReachesIt(PlainSampler):
    caught_by = "top_p_keeps_the_smallest_sufficient_set"

    def top_p(self, scaled, p):
        if p >= 1:
            return scaled
        order = torch.sort(scaled, descending=True, stable=True).indices
        dropped = order[scaled.softmax(0)[order].cumsum(0) > p]
        return scaled.index_fill(0, dropped[dropped != order[0]], -torch.inf)


class TopPKeepsOneMore(PlainSampler):
    caught_by = "top_p_keeps_the_smallest_sufficient_set"

    def top_p(self, scaled, p):
        if p >= 1:
            return scaled
        order = torch.sort(scaled, descending=True, stable=True).indices
        probs = scaled.softmax(0)[order]
        return scaled.index_fill(0, order[probs.cumsum(0) - 2 * probs >= p], -torch.inf)


class TopPKeepsEveryTie(PlainSampler):
    caught_by = "top_p_of_many_equal_ids"

    def top_p(self, scaled, p):
        kept = super().top_p(scaled, p)
        edge = kept[kept > -torch.inf].min()
        return scaled.masked_fill(scaled < edge, -torch.inf)


class TopPBeforeTopK(PlainSampler):
    caught_by = "top_k_comes_before_top_p"

    def truncate(self, scaled, rules):
        return self.top_k(self.top_p(self.min_p(scaled, rules["min_p"]), rules["top_p"]), rules["top_k"])


class MinPIsAbsolute(PlainSampler):
    caught_by = "min_p_is_relative_to_the_best"

    def min_p(self, scaled, ratio):
        kept = scaled.masked_fill(scaled.softmax(0) < ratio, -torch.inf)
        return kept if kept.max() > -torch.inf else scaled


class TruncatesBeforeTemperature(PlainSampler):
    caught_by = "temperature_comes_before_truncation"

    def rules(self, metadata, owner):
        self.temperature = super().rules(metadata, owner)["temperature"]
        return super().rules(metadata, owner)

    def truncate(self, scaled, rules):
        kept = super().truncate(scaled * rules["temperature"], rules)
        return torch.where(kept > -torch.inf, scaled, -torch.inf)


class TakesTheFirstRowsRules(PlainSampler):
    caught_by = "rows_have_their_own_rules"

    def rules(self, metadata, owner):
        return super().rules(metadata, owner) | {"top_k": super().rules(metadata, 1 % metadata.num_rows)["top_k"]}


class ForgetsEdits(PlainSampler):
    caught_by = "edits_come_before_the_argmax"

    def edit(self, request, logits):
        return logits


class EditsInHalfPrecision(PlainSampler):
    caught_by = "edits_come_before_the_argmax"

    def edit(self, request, logits):
        half = logits.bfloat16()
        super().edit(request, half)
        return half.float()


class EditsAfterTruncation(PlainSampler):
    caught_by = "edits_after_temperature_act_between_temperature_and_top_k"

    def edit_after(self, request, scaled, index):
        self.pending = (request, index)
        return scaled

    def truncate(self, scaled, rules):
        kept = super().truncate(scaled, rules)
        edited = PlainSampler.edit_after(self, self.pending[0], scaled, self.pending[1])
        return torch.where(kept > -torch.inf, edited, -torch.inf)


class SpoilsMetadata(PlainSampler):
    caught_by = "metadata_is_not_changed"

    def sample(self, request):
        output = super().sample(request)
        if request.metadata.temperature is not None:
            request.metadata.temperature.clamp_(min=0.1)
        return output


class ReplacesNaN(PlainSampler):
    caught_by = "unusable_rows_give_no_id_and_harm_nobody"

    def sample(self, request):
        request.logits.nan_to_num_(nan=0.0)
        return super().sample(request)


class OneBadRowSpoilsAll(PlainSampler):
    caught_by = "unusable_rows_give_no_id_and_harm_nobody"

    def sample(self, request):
        output = super().sample(request)
        if (output.token_ids[:, 0] < 0).any():
            output.token_ids.fill_(-1)
        return output


class TakesAnEmptyRow(PlainSampler):
    caught_by = "rows_that_edits_leave_empty_give_no_id"

    def usable(self, row):
        return not bool(row.isnan().any()) and bool(row.max() < torch.inf)


class DividesWithoutSubtracting(PlainSampler):
    caught_by = "tiny_temperatures_take_the_best"

    def temper(self, row, temperature):
        scaled = (row.half() / temperature).half()
        return scaled.nan_to_num(nan=0.0, posinf=6e4, neginf=-6e4).double()


class RawIsProcessed(PlainSampler):
    caught_by = "logprobs_are_those_of_the_mode"

    def logprobs(self, raw, processed, tokens, wanted):
        return super().logprobs(torch.stack(processed).float(), processed, tokens, wanted)


class RanksFromZero(PlainSampler):
    caught_by = "ranks_count_ids_that_are_at_least_as_likely"

    def ranks(self, values, mine):
        return (values > mine).sum(1)


class RanksIgnoreTies(PlainSampler):
    caught_by = "ranks_count_ids_that_are_at_least_as_likely"

    def ranks(self, values, mine):
        return (values > mine).sum(1) + 1


class SeedsDependOnTheRow(PlainSampler):
    caught_by = "a_seed_and_a_position_give_one_id"

    def rules(self, metadata, owner):
        found = super().rules(metadata, owner)
        return found if found["seed"] is None else found | {"seed": found["seed"] + owner}


class SeedsShareAStream(PlainSampler):
    caught_by = "a_seed_and_a_position_give_one_id"

    def uniform(self, seed, position, purpose):
        return super().uniform(None, position, purpose)


class IgnoresPositions(PlainSampler):
    caught_by = "positions_and_seeds_draw_apart"

    def uniform(self, seed, position, purpose):
        return super().uniform(seed, 0, purpose)


class SeedsOf32Bits(PlainSampler):
    caught_by = "seeds_of_64_bits_are_told_apart"

    def uniform(self, seed, position, purpose):
        return super().uniform(None if seed is None else seed % 2, position, purpose)


class OneNumberForAllRows(PlainSampler):
    caught_by = "rows_without_a_seed_draw_apart"

    def sample(self, request):
        self.number = float(torch.rand((), generator=self.stream))
        return super().sample(request)

    def uniform(self, seed, position, purpose):
        return self.number if seed is None else super().uniform(seed, position, purpose)


class StartsAnewEachStep(PlainSampler):
    caught_by = "rows_without_a_seed_draw_apart"

    def sample(self, request):
        self.stream.manual_seed(self.setup.seed)
        return super().sample(request)


class IgnoresTheEngineSeed(PlainSampler):
    caught_by = "equal_engine_seeds_give_equal_draws"

    def __init__(self, setup):
        super().__init__(setup)
        self.stream.manual_seed(0)


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


class LogprobsOfTheWrongRows(PlainSampler):
    caught_by = "rows_of_drafts_belong_to_their_tokens"

    def rows_of(self, spec, tokens):
        return [1] * len(tokens) if spec is None else [1 + max(spec.num_draft_tokens)] * len(tokens)

    def logprobs(self, raw, processed, tokens, wanted):
        return super().logprobs(raw, processed, tokens[: len(raw)], wanted)
