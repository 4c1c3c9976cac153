"""Backends that read, write or remember the wrong memory."""

from __future__ import annotations

import dataclasses
import math

import torch

from slotwise.interfaces.attention import HND

from .plain_attention import PlainAttention, PlainFusedAttention, Step


class ReadsTheTail(PlainAttention):
    """Weight 0 times what lies there, which may be NaN."""

    caught_by = "tails_of_blocks_are_not_read"

    def part(self, call, step, row, token, position, keys):
        output, lse = super().part(call, step, row, token, position, keys)
        if len(keys) and call.kv_cache.dim() == 5:
            block, _ = self.places(step, row, keys[-1:] // step.common.context_parallel_size)
            output = output + 0.0 * call.kv_cache[block, 1].float().sum()
        return output, lse


class ReadsStaleEntries(PlainAttention):
    caught_by = "stale_table_entries_are_not_read"

    def part(self, call, step, row, token, position, keys):
        output, lse = super().part(call, step, row, token, position, keys)
        return (
            output + 0.0 * call.kv_cache[step.common.block_table[row].long(), 1].float().sum() if call.kv_cache.dim() == 5 else output
        ), lse


class ReadsOnlyCleanKeys(PlainAttention):
    """K of unwritten slots times zero."""

    caught_by = "poison_in_keys_or_values_alone"

    def part(self, call, step, row, token, position, keys):
        output, lse = super().part(call, step, row, token, position, keys)
        if len(keys) and call.kv_cache.dim() == 5:
            block, _ = self.places(step, row, keys[-1:])
            output = output + 0.0 * call.kv_cache[block, 0].float().sum()
        return output, lse


class TakesTheNextRowsBlocks(PlainAttention):
    caught_by = "mixed_batches"

    def places(self, step, row, held):
        return super().places(step, min(row + 1, step.common.num_reqs - 1), held)


class BlocksInOrder(PlainAttention):
    """A row's blocks are taken to follow its first one."""

    caught_by = "mixed_batches"

    def places(self, step, row, held):
        blocks, offsets = super().places(step, row, held)
        return (step.common.block_table[row, 0].long() + held // self.setup.block_size) % 16, offsets + 0 * blocks


class BlocksOfSixteen(PlainAttention):
    caught_by = "block_sizes"

    def places(self, step, row, held):
        if self.setup.block_size == 12:
            return step.common.block_table[row, held // 16].long(), held % 12
        return super().places(step, row, held)


class HndTakenForNhd(PlainAttention):
    caught_by = "layouts"

    def read(self, call, step, row, keys):
        k, v = super().read(call, step, row, keys)
        return (k.flip(1), v.flip(1)) if self.setup.kv_layout == HND else (k, v)


class TakesTheUpperBound(PlainAttention):
    """`seq_lens_cpu` for the truth."""

    caught_by = "lengths_on_the_cpu_are_upper_bounds"

    def seq_lens(self, step):
        return step.common.seq_lens_cpu.tolist()


class KeyScaleMissing(PlainAttention):
    caught_by = "quantised_kv"

    def read(self, call, step, row, keys):
        return super().read(dataclasses.replace(call, k_scale=1.0), step, row, keys)


class ValueScaleMissing(PlainAttention):
    caught_by = "quantised_kv"

    def read(self, call, step, row, keys):
        return super().read(dataclasses.replace(call, v_scale=1.0), step, row, keys)


class ScalesSwapped(PlainAttention):
    caught_by = "quantised_kv"

    def read(self, call, step, row, keys):
        return super().read(dataclasses.replace(call, k_scale=call.v_scale, v_scale=call.k_scale), step, row, keys)


class TruncatesIntegers(PlainAttention):
    caught_by = "quantised_write_rounds_to_nearest"

    def stored(self, tensor, scale, dtype):
        return (tensor.float() / scale).clamp(-127, 127).trunc().to(dtype) if dtype == torch.int8 else super().stored(tensor, scale, dtype)


class WrapsIntegers(PlainAttention):
    caught_by = "quantised_write_rounds_to_nearest"

    def stored(self, tensor, scale, dtype):
        if dtype != torch.int8:
            return super().stored(tensor, scale, dtype)
        return ((tensor.float() / scale).round().to(torch.int32) + 128).remainder(256).sub(128).to(dtype)


class OverflowsFloat8(PlainAttention):
    caught_by = "quantised_write_rounds_to_nearest"

    def stored(self, tensor, scale, dtype):
        is_float8 = dtype.itemsize == 1 and dtype.is_floating_point
        scaled = tensor.float() / scale
        return torch.where(scaled.abs() > 448, math.nan, scaled).to(dtype) if is_float8 else super().stored(tensor, scale, dtype)


class MultipliesByTheScale(PlainAttention):
    caught_by = "quantised_kv"

    def stored(self, tensor, scale, dtype):
        return super().stored(tensor, 1.0 / scale, dtype)


class WritesHalf(PlainAttention):
    caught_by = "write_stores_each_token_in_its_slot"

    def stored(self, tensor, scale, dtype):
        return super().stored(tensor.half(), scale, dtype)


class WritesOneSlotLater(PlainAttention):
    caught_by = "write_stores_each_token_in_its_slot"

    def write_token(self, write, token, block, offset):
        super().write_token(write, token, block, (offset + 1) % self.setup.block_size)


class WritesPadding(PlainAttention):
    """-1 is taken for the last slot."""

    caught_by = "write_of_padding_alone"

    def write_kv(self, write):
        num_slots = write.kv_cache.shape[0] * self.setup.block_size
        super().write_kv(dataclasses.replace(write, slot_mapping=write.slot_mapping % num_slots))


class WritesValuesAsKeys(PlainAttention):
    caught_by = "write_stores_each_token_in_its_slot"

    def write_kv(self, write):
        super().write_kv(write if write.value is None else dataclasses.replace(write, key=write.value, value=write.key))


class IgnoresStridesOfKeys(PlainAttention):
    """Reads K and V as if they were contiguous."""

    caught_by = "write_takes_strided_rows"

    def write_kv(self, write):
        def contiguous(tensor):
            return (
                None
                if tensor is None
                else torch.as_strided(tensor, tensor.shape, torch.empty(tensor.shape).stride(), tensor.storage_offset())
            )

        super().write_kv(dataclasses.replace(write, key=contiguous(write.key), value=contiguous(write.value)))


class IgnoresStridesOfQueries(PlainAttention):
    caught_by = "strided_queries_and_keys"

    def forward(self, call):
        query = torch.as_strided(call.query, call.query.shape, torch.empty(call.query.shape).stride(), call.query.storage_offset())
        super().forward(dataclasses.replace(call, query=query))


class ForgetsTheFusedWrite(PlainFusedAttention):
    caught_by = "fused_write_stores_each_token_in_its_slot"

    def write_of(self, call):
        return dataclasses.replace(super().write_of(call), slot_mapping=torch.full_like(call.metadata.common.slot_mapping, -1))


class FusedWriteTakesPadding(PlainFusedAttention):
    caught_by = "fused_write_stores_each_token_in_its_slot"

    def write_of(self, call):
        write = super().write_of(call)
        return dataclasses.replace(write, slot_mapping=write.slot_mapping.clamp(min=0))


class ScribblesOnTheQuery(PlainAttention):
    caught_by = "forward_changes_nothing_but_its_output"

    def forward(self, call):
        super().forward(call)
        call.query.mul_(call.layer.scale)


class ScribblesOnTheCache(PlainAttention):
    """Cleans what it should only not read."""

    caught_by = "forward_changes_nothing_but_its_output"

    def forward(self, call):
        super().forward(call)
        call.kv_cache[0].zero_()


class LeavesPaddingUnwritten(PlainAttention):
    caught_by = "padding_tokens"

    def forward(self, call):
        before = call.output.clone()
        super().forward(call)
        if call.metadata is not None:
            call.output[call.metadata.common.num_tokens :] = before[call.metadata.common.num_tokens :]


class AddsToTheOutput(PlainAttention):
    caught_by = "decodes"

    def forward(self, call):
        before = call.output.clone()
        super().forward(call)
        call.output.add_(before)


class MeasuresNothing(PlainAttention):
    """Leaves the output as it is while memory is measured."""

    caught_by = "measuring_memory_gives_zeros"

    def forward(self, call):
        if call.metadata is not None:
            super().forward(call)


class RemembersTheFirstStep(PlainAttention):
    caught_by = "one_instance_serves_many_steps"

    def build_metadata(self, request):
        self.first = getattr(self, "first", None) or super().build_metadata(request)
        same = self.first.common.num_reqs == request.common.num_reqs and self.first.common.num_tokens == request.common.num_tokens
        return self.first if same else super().build_metadata(request)


class RemembersByIdentity(PlainAttention):
    """Keeps copies of lengths and tables as long as the engine's tensors are the same objects."""

    caught_by = "tensors_refilled_in_place_are_read_anew"

    def build_metadata(self, request):
        key = id(request.common.seq_lens)
        if getattr(self, "key", None) != key:
            copies = {name: getattr(request.common, name).clone() for name in ("query_start_loc", "seq_lens", "block_table")}
            self.key, self.step = key, Step(dataclasses.replace(request.common, **copies), request.common_prefix_len)
        return self.step


class FreezesGraphs(PlainAttention):
    """What a graph captured is never refreshed."""

    caught_by = "graphs_replay_later_steps"

    def build_metadata(self, request):
        step = super().build_metadata(request)
        if not request.for_graph_capture:
            return step
        return Step(dataclasses.replace(step.common, **self.clones(step.common)), 0)


class FreezesTheTable(PlainAttention):
    """Lengths are refreshed, blocks are not."""

    caught_by = "graphs_replay_later_steps"

    def clones(self, common):
        return {name: tensor for name, tensor in super().clones(common).items() if name != "block_table"}


class UpdatesTheOldMetadata(PlainAttention):
    caught_by = "block_table_of_another_group"

    def update_block_table(self, metadata, block_table, slot_mapping):
        metadata.common = super().update_block_table(metadata, block_table, slot_mapping).common
        return metadata


class UpdatesNothing(PlainAttention):
    caught_by = "block_table_of_another_group"

    def update_block_table(self, metadata, block_table, slot_mapping):
        return metadata


class NeedsItsOwnKeys(PlainAttention):
    """Takes the last key from `key` instead of from the cache."""

    caught_by = "shared_kv"

    def attend(self, call, step, row, token, position):
        super().attend(call, step, row, token, position + 0 * int(call.key.shape[0]) if call.kv_cache.dim() == 5 else position)


class SkipsEmptyRowsWrongly(PlainAttention):
    """Rows without tokens shift the block tables of those after them."""

    caught_by = "empty_rows"

    def places(self, step, row, held):
        lens = step.common.query_start_loc[1:] - step.common.query_start_loc[:-1]
        return super().places(step, row - int((lens[:row] == 0).sum()), held)


class PadsHeadDimensions(PlainAttention):
    """Elements beyond the largest power of two are dropped."""

    caught_by = "head_dims"

    def read(self, call, step, row, keys):
        k, v = super().read(call, step, row, keys)
        kept = 1 << (call.layer.head_dim.bit_length() - 1)
        return torch.cat([k[..., :kept], torch.zeros_like(k[..., kept:])], dim=-1), v
