"""Samplers with one fault each in logprobs, ranks or the form of what they return, and the case that catches it."""

from __future__ import annotations

import dataclasses

import torch

from .plain_sampler import PlainSampler


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


class LogprobsOfTheWrongRows(PlainSampler):
    caught_by = "rows_of_drafts_belong_to_their_tokens"

    def rows_of(self, spec, tokens):
        return [1] * len(tokens) if spec is None else [1 + max(spec.num_draft_tokens)] * len(tokens)

    def logprobs(self, raw, processed, tokens, wanted):
        return super().logprobs(raw, processed, tokens[: len(raw)], wanted)


class LogprobsInHalfPrecision(PlainSampler):
    caught_by = "logprobs_are_those_of_the_mode"

    def logprobs(self, raw, processed, tokens, wanted):
        found = super().logprobs(raw, processed, tokens, wanted)
        return dataclasses.replace(found, logprobs=found.logprobs.bfloat16().float())


class ProcessedWithoutLaterEdits(PlainSampler):
    caught_by = "processed_logprobs_hold_edits_after_temperature"

    def processed(self, kept, row, temperature):
        return torch.where(kept > -torch.inf, row / temperature, -torch.inf)


class LogprobsOfTheFirstRequestsRules(PlainSampler):
    caught_by = "processed_logprobs_of_drafts_are_those_of_their_rows"

    def processed(self, kept, row, temperature):
        return super().processed(kept, row, 1.0)


class IdsOf32Bits(PlainSampler):
    caught_by = "output_has_the_promised_form"

    def sample(self, request):
        output = super().sample(request)
        return dataclasses.replace(output, token_ids=output.token_ids.int())


class AsWideAsTheMostKeptDrafts(PlainSampler):
    caught_by = "output_of_drafts_has_the_promised_form"

    def sample(self, request):
        output = super().sample(request)
        is_used = (output.token_ids >= 0).any(dim=0)
        return dataclasses.replace(output, token_ids=output.token_ids[:, : max(1, int(is_used.sum()))])


class LogprobsRise(PlainSampler):
    caught_by = "columns_are_the_token_then_the_most_likely"

    def logprobs(self, raw, processed, tokens, wanted):
        found = super().logprobs(raw, processed, tokens, wanted)
        order = [0, *reversed(range(1, found.token_ids.shape[1]))]
        return dataclasses.replace(found, token_ids=found.token_ids[:, order], logprobs=found.logprobs[:, order])


class TheMostLikelyInsteadOfTheToken(PlainSampler):
    caught_by = "columns_are_the_token_then_the_most_likely"

    def logprobs(self, raw, processed, tokens, wanted):
        return super().logprobs(raw, processed, raw.argmax(1), wanted)


class AlwaysGivesLogprobs(PlainSampler):
    caught_by = "without_a_wish_there_are_none"

    def sample(self, request):
        wanted = request.metadata.num_logprobs or 0
        return super().sample(dataclasses.replace(request, metadata=dataclasses.replace(request.metadata, num_logprobs=wanted)))
