"""Backends that compute something else: who is seen, how scores are made, how parts are merged."""

from __future__ import annotations

import dataclasses
import math

import torch

from slotwise.interfaces.attention import CROSS

from .plain_attention import CLAIMS, PlainAttention


class WindowOneTooLong(PlainAttention):
    caught_by = "sliding_window_counts_the_position_itself"

    def in_window(self, position, keys, window):
        return (position - keys).abs() <= window


class WindowOneTooShort(PlainAttention):
    caught_by = "sliding_window"

    def in_window(self, position, keys, window):
        return (position - keys).abs() < max(window - 1, 1)


class WindowOnTheLeftAlone(PlainAttention):
    """Rows that are not causal see every later position."""

    caught_by = "encoders"

    def in_window(self, position, keys, window):
        return position - keys < window


class ChunkBoundaryOffByOne(PlainAttention):
    caught_by = "chunked_local"

    def in_chunk(self, position, keys, length):
        return (keys + 1) // length == (position + 1) // length


class ChunkTakenForWindow(PlainAttention):
    caught_by = "chunked_local"

    def in_chunk(self, position, keys, length):
        return (position - keys).abs() < length


class CausalityFromTheStart(PlainAttention):
    """The offset of a chunk is ignored: query i sees keys 0 .. i."""

    caught_by = "chunks_of_a_prompt_give_the_whole"

    def position(self, starts, row, token, seq_len):
        return token - starts[row]


class SeesOneLaterToken(PlainAttention):
    caught_by = "prompts"

    def visible(self, call, step, row, position):
        return super().visible(call, step, row, position + 1 if call.layer.sliding_window is None else position)


class IgnoresCausalFlag(PlainAttention):
    caught_by = "non_causal"

    def is_causal(self, common, row):
        return True


class TakesCausalityOfTheFirstRow(PlainAttention):
    caught_by = "non_causal"

    def is_causal(self, common, row):
        return super().is_causal(common, 0)


class MasksForgetEarlierRows(PlainAttention):
    caught_by = "custom_masks"

    def mask_row(self, common, row, position):
        seq_len = int(common.seq_lens[row])
        start = (position - (seq_len - int(common.query_start_loc[row + 1] - common.query_start_loc[row]))) * seq_len
        return common.custom_mask[start : start + seq_len]


class MasksAreCausalToo(PlainAttention):
    caught_by = "custom_masks"

    def mask_row(self, common, row, position):
        mask = super().mask_row(common, row, position)
        return mask & (torch.arange(len(mask)) <= position)


class RowsThatSeeNothingAverage(PlainAttention):
    """As softmax over equal scores of minus a large number does."""

    caught_by = "rows_that_see_nothing"

    def visible(self, call, step, row, position):
        visible = super().visible(call, step, row, position)
        return visible if visible.any() or step.common.custom_mask is None else torch.ones_like(visible)


class RowsThatSeeNothingAreNaN(PlainAttention):
    caught_by = "rows_that_see_nothing"

    def merge(self, call, step, parts):
        output, lse = super().merge(call, step, parts)
        return torch.where(torch.isneginf(lse)[:, None], math.nan, output), lse


class CrossIsCausal(PlainAttention):
    caught_by = "cross_attention"

    def visible(self, call, step, row, position):
        visible = super().visible(call, step, row, position)
        return visible & (torch.arange(len(visible)) <= position) if call.layer.attention_type == CROSS else visible


class EncoderSeesNoLaterToken(PlainAttention):
    caught_by = "encoders"

    def visible(self, call, step, row, position):
        visible = super().visible(call, step, row, position)
        return visible & (torch.arange(len(visible)) <= position) if call.kv_cache.numel() == 0 else visible


class HeadsInterleaved(PlainAttention):
    """Query head h reads KV head h % num_kv_heads."""

    caught_by = "grouped_query_heads"

    def kv_heads(self, layer):
        return torch.arange(layer.num_heads) % layer.num_kv_heads


class ScaleMissing(PlainAttention):
    caught_by = "decodes"

    def scores(self, call, query, k, distance):
        return super().scores(call, query / call.layer.scale, k, distance)


class ScaleFromTheHeadDimension(PlainAttention):
    caught_by = "scale_is_the_layers"

    def scores(self, call, query, k, distance):
        return super().scores(call, query * call.layer.head_dim**-0.5 / call.layer.scale, k, distance)


class ScaleTwice(PlainAttention):
    caught_by = "decodes"

    def scores(self, call, query, k, distance):
        return super().scores(call, query * call.layer.scale, k, distance)


class CapBeforeTheScale(PlainAttention):
    caught_by = "features_together"

    def cap(self, scores, cap):
        return super().cap(scores * 4.0, cap) / 4.0


class CapDividesAlone(PlainAttention):
    caught_by = "soft_cap"

    def cap(self, scores, cap):
        return torch.tanh(scores / cap)


class CapClips(PlainAttention):
    caught_by = "soft_cap"

    def cap(self, scores, cap):
        return scores.clamp(-cap, cap)


class CapAfterTheMask(PlainAttention):
    """Hidden keys, at minus infinity before, come back at -cap."""

    caught_by = "soft_cap"

    def visible(self, call, step, row, position):
        visible = super().visible(call, step, row, position)
        return torch.arange(len(visible)) <= position + 1 if call.layer.logits_soft_cap else visible


class AlibiAdded(PlainAttention):
    caught_by = "alibi"

    def scores(self, call, query, k, distance):
        return super().scores(call, query, k, -distance)


class AlibiCapped(PlainAttention):
    """ALiBi joins before the soft cap."""

    caught_by = "features_together"

    def scores(self, call, query, k, distance):
        scores = torch.einsum("hd,khd->hk", query, k) * call.layer.scale
        if call.alibi_slopes is not None:
            scores = scores - call.alibi_slopes[:, None] * distance
        return self.cap(scores, call.layer.logits_soft_cap) if call.layer.logits_soft_cap else scores


class AlibiOfOtherHeads(PlainAttention):
    caught_by = "alibi"

    def scores(self, call, query, k, distance):
        slopes = None if call.alibi_slopes is None else call.alibi_slopes.flip(0)
        return super().scores(dataclasses.replace(call, alibi_slopes=slopes), query, k, distance)


class SinkIgnored(PlainAttention):
    caught_by = "sinks"

    def sinks(self, call, step):
        return None


class SinkCountedTwice(PlainAttention):
    caught_by = "sinks"

    def sinks(self, call, step):
        sinks = super().sinks(call, step)
        return None if sinks is None else sinks + math.log(2)


class SinkJoinsEachPart(PlainAttention):
    """Right until a cascade has two parts."""

    caught_by = "parts_of_a_cascade_join_once"

    def part(self, call, step, row, token, position, keys):
        output, lse = super().part(call, step, row, token, position, keys)
        sink = self.sinks(call, step)
        if sink is None or not step.prefix_len:
            return output, lse
        total = torch.logaddexp(lse, sink)
        return output * torch.exp(lse - total)[:, None], torch.where(torch.isneginf(lse), lse, total)


class SinkScaled(PlainAttention):
    caught_by = "sinks"

    def sinks(self, call, step):
        sinks = super().sinks(call, step)
        return None if sinks is None else sinks * call.layer.scale


class SinkCapped(PlainAttention):
    caught_by = "sinks"

    def sinks(self, call, step):
        sinks = super().sinks(call, step)
        return self.cap(sinks, call.layer.logits_soft_cap) if sinks is not None and call.layer.logits_soft_cap else sinks


class SinkGivesHiddenRowsAnLse(PlainAttention):
    caught_by = "features_together"

    def merge(self, call, step, parts):
        output, lse = super().merge(call, step, parts)
        sinks = self.sinks(call, step)
        return output, lse if sinks is None else torch.where(torch.isneginf(lse), sinks, lse) + 0.01


class SinkOnEveryRank(PlainAttention):
    caught_by = "context_parallelism"

    def sinks(self, call, step):
        return call.sinks


class LseInBaseTwo(PlainAttention):
    caught_by = "parts_merge_by_lse"

    def reported_lse(self, call, lse):
        return lse / math.log(2)


class LseWithoutTheSink(PlainAttention):
    caught_by = "lse"

    def merge(self, call, step, parts):
        output, _ = super().merge(call, step, parts)
        return output, super().merge(dataclasses.replace(call, sinks=None), step, parts)[1]


class LseIsThePeak(PlainAttention):
    caught_by = "lse"

    def reported_lse(self, call, lse):
        return lse.floor()


class LseOfPaddingIsZero(PlainAttention):
    caught_by = "lse"

    def forward(self, call):
        super().forward(call)
        if call.lse is not None and call.metadata is not None:
            call.lse[call.metadata.common.num_tokens :] = 0.0


class CascadeForgetsThePrefix(PlainAttention):
    caught_by = "cascade"

    def parts(self, call, step, keys):
        return super().parts(call, step, keys)[-1:]


class CascadeCountsThePrefixTwice(PlainAttention):
    caught_by = "cascade"

    def parts(self, call, step, keys):
        parts = super().parts(call, step, keys)
        return [*parts, parts[0]] if step.prefix_len else parts


class CascadeAverages(PlainAttention):
    caught_by = "cascade"

    def merge(self, call, step, parts):
        output, lse = super().merge(call, step, parts)
        return (sum(output for output, _ in parts) / len(parts) if len(parts) > 1 else output), lse


class CascadeMergesInBaseTwo(PlainAttention):
    caught_by = "cascade"

    def merge(self, call, step, parts):
        return super().merge(call, step, [(output, lse / math.log(2)) for output, lse in parts] if len(parts) > 1 else parts)


class RanksIgnored(PlainAttention):
    caught_by = "context_parallelism"

    def visible(self, call, step, row, position):
        common = dataclasses.replace(step.common, context_parallel_rank=0)
        return super().visible(call, dataclasses.replace(step, common=common), row, position)


class MlaValueFromTheEnd(PlainAttention):
    caught_by = "latent_attention"

    def read(self, call, step, row, keys):
        k, v = super().read(call, step, row, keys)
        return (k, k[..., -call.layer.value_dim :]) if call.layer.is_mla else (k, v)


class OneLayerForAll(PlainAttention):
    """The window of the first layer of the group."""

    caught_by = "layers_of_one_group_differ"

    def visible(self, call, step, row, position):
        first = self.setup.layers[0]
        layer = dataclasses.replace(call.layer, sliding_window=first.sliding_window, kind=first.kind)
        return super().visible(dataclasses.replace(call, layer=layer), step, row, position)


class SumsInHalfPrecision(PlainAttention):
    caught_by = "decodes"

    def part(self, call, step, row, token, position, keys):
        output, lse = super().part(call, step, row, token, position, keys)
        return output.bfloat16().float(), lse


class ScoresInHalfPrecision(PlainAttention):
    caught_by = "mixed_batches"

    def scores(self, call, query, k, distance):
        return super().scores(call, query.half().float(), k, distance)


class WeightsWithoutPeak(PlainAttention):
    """exp overflows: nothing is subtracted first."""

    caught_by = "extreme_magnitudes"

    def part(self, call, step, row, token, position, keys):
        output, lse = super().part(call, step, row, token, position, keys)
        return torch.where((lse > 88.0)[:, None], math.nan, output), lse


class OneThousandthOff(PlainAttention):
    caught_by = "decodes"

    def merge(self, call, step, parts):
        output, lse = super().merge(call, step, parts)
        return output * 1.001, lse


class LongContextsAreCut(PlainAttention):
    caught_by = "very_long_context"

    def parts(self, call, step, keys):
        return super().parts(call, step, keys[-1024:])


class DependsOnTheBatch(PlainAttention):
    """Sums are split where many rows are: right, but not bit by bit."""

    caught_by = "results_do_not_depend_on_the_batch"

    def parts(self, call, step, keys):
        middle = len(keys) // 2
        return [keys[:middle], keys[middle:]] if step.common.num_reqs > 1 and middle else super().parts(call, step, keys)


class DependsOnTheChunk(PlainAttention):
    caught_by = "chunks_are_bit_equal"

    def parts(self, call, step, keys):
        middle = len(keys) // 2
        return [keys[:middle], keys[middle:]] if step.common.max_query_len == 1 and middle else super().parts(call, step, keys)


class ClaimsAnotherDtype(PlainAttention):
    """A claim that is not true."""

    capabilities = dataclasses.replace(CLAIMS, dtypes=("float64",))
    caught_by = "decodes"
