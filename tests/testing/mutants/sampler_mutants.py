"""Samplers with one fault each in what they draw, of the kinds that engines had, and the case that catches it."""

from __future__ import annotations

import dataclasses

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
    num_draws_needed = 6000

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
    num_draws_needed = 4000

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


class LogprobsOfUnusableRowsFail(PlainSampler):
    caught_by = "unusable_rows_give_no_id_and_harm_nobody"
    raises = "RuntimeError"

    def logprobs(self, raw, processed, tokens, wanted):
        raw.gather(1, tokens.unsqueeze(1))
        return super().logprobs(raw, processed, tokens, wanted)


class EditsRandomRowsAlone(PlainSampler):
    caught_by = "edits_after_temperature_act_between_temperature_and_top_k"

    def edit_after(self, request, scaled, index):
        if request.edits is None or not request.edits.edits_after_temperature:
            return scaled
        one = scaled.float().unsqueeze(0)
        request.edits.after_temperature(one)
        return one[0].double()


class LosesTheLastIds(PlainSampler):
    caught_by = "one_id_left_is_taken"

    def sample(self, request):
        whole = request.logits.shape[1] // 32 * 32
        if whole:
            request.logits[:, whole:] = -torch.inf
        return super().sample(request)


class OverflowsInHalfPrecision(PlainSampler):
    caught_by = "large_and_small_values_do_not_overflow"

    def sample(self, request):
        return super().sample(dataclasses.replace(request, logits=request.logits.half()))


class DrawsInHalfPrecision(PlainSampler):
    caught_by = "half_precision_logits_are_taken"

    def sample(self, request):
        if request.logits.dtype == torch.float32:
            return super().sample(request)
        return super().sample(dataclasses.replace(request, logits=request.logits.to(torch.float8_e4m3fn).float()))


class TopKOfTheVocabularyIsOne(PlainSampler):
    caught_by = "parameters_beyond_the_vocabulary_are_off"

    def top_k(self, scaled, k):
        return super().top_k(scaled, 1 if k == len(scaled) > 1 else k)


class SpreadsALittleOverAll(PlainSampler):
    caught_by = "forbidden_ids_never_come"

    def draw(self, probs, uniform):
        return super().draw(probs + 0.002, uniform)


class MinPComesLast(PlainSampler):
    caught_by = "rules_together"

    def truncate(self, scaled, rules):
        return self.min_p(self.top_p(self.top_k(scaled, rules["top_k"]), rules["top_p"]), rules["min_p"])
