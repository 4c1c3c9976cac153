"""Each faulty backend, KV cache manager and batch is caught, and named with layer, request and block; right ones pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotwise.engine.attention_dispatch import BoundLayer, GroupBackends
from slotwise.engine.block_copy import copy_blocks
from slotwise.engine.scheduler_output import CachedRequestData, HeldBlocks, NewRequestData, SchedulerOutput
from slotwise.errors import ConfigError, KVSanitizerError
from slotwise.interfaces.attention import (
    AttentionBackend,
    AttentionCall,
    AttentionCapabilities,
    AttentionLayer,
    AttentionSetup,
    CommonAttentionMetadata,
    KVWrite,
    MetadataRequest,
)
from slotwise.interfaces.kv_cache import BlockCopy, KVGroup
from slotwise.sampling_params import SamplingParams
from slotwise.sanitizer.dispatch import SanitizedAttentionDispatch
from slotwise.sanitizer.faults import KVFault
from slotwise.sanitizer.guarded_memory import GuardedMemory, LayerSlots
from slotwise.sanitizer.visibility import first_visible, separating_subsets

BLOCK_SIZE, NUM_BLOCKS = 4, 12
HEADS, KV_HEADS, DIM = 2, 1, 8


class PlainAttention(AttentionBackend):
    """Token by token, in the plainest form; what a fault changes is a method."""

    capabilities = AttentionCapabilities()

    def build_metadata(self, request: MetadataRequest) -> CommonAttentionMetadata:
        return request.common

    def forward(self, call: AttentionCall) -> None:
        common: CommonAttentionMetadata = call.metadata
        starts = common.query_start_loc.tolist()
        call.output.zero_()
        for row in range(common.num_reqs):
            for token in range(starts[row], starts[row + 1]):
                places = self.places(call.layer, common, row, int(common.positions[token]))
                cache = torch.stack([call.kv_cache[block, :, offset] for block, offset in places])
                scores = (cache[:, 0, 0] @ call.query[token].T) * call.layer.scale
                scores[self.num_visible(call.layer, common, row, int(common.positions[token])) :] = -torch.inf
                call.output[token] = scores.softmax(dim=0).T @ cache[:, 1, 0]

    def places(self, layer: AttentionLayer, common: CommonAttentionMetadata, row: int, position: int) -> list[tuple[int, int]]:
        """(block, offset) of what is gathered."""
        return [self.place(common.block_table, row, key) for key in range(first_visible(layer, position), position + 1)]

    def num_visible(self, layer: AttentionLayer, common: CommonAttentionMetadata, row: int, position: int) -> int:
        """How many of the gathered ones are not masked."""
        return len(self.places(layer, common, row, position))

    @staticmethod
    def place(table: torch.Tensor, row: int, position: int) -> tuple[int, int]:
        return int(table[row, position // BLOCK_SIZE]), position % BLOCK_SIZE


class Faulty(PlainAttention):
    """Right in layer 0, wrong in layer 1."""

    def places(self, layer: AttentionLayer, common: CommonAttentionMetadata, row: int, position: int) -> list[tuple[int, int]]:
        right = super().places(layer, common, row, position)
        return self.wrong_places(layer, common, row, position, right) if layer.index == 1 else right

    def wrong_places(self, layer: Any, common: Any, row: int, position: int, right: Any) -> Any:
        return right

    def write_kv(self, write: KVWrite) -> None:
        super().write_kv(self.wrong_write(write) if write.layer.index == 1 else write)

    def wrong_write(self, write: KVWrite) -> KVWrite:
        return write


class ReadsOneSlotPastSeqLen(Faulty):
    def wrong_places(self, layer: Any, common: Any, row: int, position: int, right: Any) -> Any:
        past = position + 1 == int(common.seq_lens[row]) and (position + 1) % BLOCK_SIZE
        return [*right, self.place(common.block_table, row, position + 1)] if past else right


class GathersWholeBlocksAndMasksTheScores(Faulty):
    """A masked weight of 0 times a V of NaN is NaN."""

    def wrong_places(self, layer: Any, common: Any, row: int, position: int, right: Any) -> Any:
        return [*right, *((right[-1][0], offset) for offset in range(right[-1][1] + 1, BLOCK_SIZE))]

    def num_visible(self, layer: Any, common: Any, row: int, position: int) -> int:
        return position + 1 - first_visible(layer, position)


class ReadsTheTablesPadding(Faulty):
    def wrong_places(self, layer: Any, common: Any, row: int, position: int, right: Any) -> Any:
        used = -(-int(common.seq_lens[row]) // BLOCK_SIZE)
        return [*right, *((block, 0) for block in common.block_table[row, used:].tolist())]


class KeepsTheFirstTable(Faulty):
    first: Any = None

    def wrong_places(self, layer: Any, common: Any, row: int, position: int, right: Any) -> Any:
        self.first = common.block_table if self.first is None else self.first
        return [self.place(self.first, row, key) for key in range(position + 1)]


class KeepsTheSecondColumn(KeepsTheFirstTable):
    def wrong_places(self, layer: Any, common: Any, row: int, position: int, right: Any) -> Any:
        stale = super().wrong_places(layer, common, row, position, right)
        return right[:BLOCK_SIZE] + stale[BLOCK_SIZE:]


class ReadsTheFirstRowsTable(Faulty):
    def wrong_places(self, layer: Any, common: Any, row: int, position: int, right: Any) -> Any:
        return [self.place(common.block_table, 0, key) for key in range(position + 1)]


class ReadsOneBeforeTheWindow(Faulty):
    def wrong_places(self, layer: Any, common: Any, row: int, position: int, right: Any) -> Any:
        first = first_visible(layer, position)
        return [self.place(common.block_table, row, first - 1), *right] if first else right


class WritesPadding(Faulty):
    def wrong_write(self, write: KVWrite) -> KVWrite:
        last = NUM_BLOCKS * BLOCK_SIZE - 1
        return replace(write, slot_mapping=write.slot_mapping.masked_fill(write.slot_mapping < 0, last))


class WritesOneSlotTooFar(Faulty):
    def wrong_write(self, write: KVWrite) -> KVWrite:
        return replace(write, slot_mapping=write.slot_mapping + 1)


class WritesTheLastTokenToAnother(Faulty):
    def wrong_write(self, write: KVWrite) -> KVWrite:
        slots = write.slot_mapping.clone()
        slots[(slots >= 0).nonzero()[-1]] = 22  # of request a, not written yet
        return replace(write, slot_mapping=slots)


class ForgetsTheLastToken(Faulty):
    def wrong_write(self, write: KVWrite) -> KVWrite:
        return replace(write, slot_mapping=write.slot_mapping[:-1], key=write.key[:-1], value=write.value[:-1])


class WritesKInPlaceOfV(Faulty):
    def wrong_write(self, write: KVWrite) -> KVWrite:
        return replace(write, value=write.key)


class ExchangesKAndV(Faulty):
    def wrong_write(self, write: KVWrite) -> KVWrite:
        return replace(write, key=write.value, value=write.key)


class ExchangesTokens(Faulty):
    def wrong_write(self, write: KVWrite) -> KVWrite:
        return replace(write, key=write.key.flip(0), value=write.value.flip(0))


class OverwritesTheFirstBlockOfASequence(Faulty):
    """Writes once more where decoding started: rows' first blocks may be shared."""

    def write_kv(self, write: KVWrite) -> None:
        super().write_kv(write)
        if write.layer.index == 1 and len(write.slot_mapping) == 2:
            write.kv_cache[3, 0, 1] += 1.0


class ScalesTheCacheInForward(Faulty):
    def forward(self, call: AttentionCall) -> None:
        super().forward(call)
        if call.layer.index == 1:
            call.kv_cache[3, 0, 0] *= 2


class WritesToTheLayerBefore(Faulty):
    before: Any = None

    def forward(self, call: AttentionCall) -> None:
        super().forward(call)
        if call.layer.index == 0:
            self.before = call.kv_cache
        else:
            self.before[3, 1, 0] = 5.0


class Fused(PlainAttention):
    capabilities = AttentionCapabilities(fused_kv_write=True)

    def forward(self, call: AttentionCall) -> None:
        assert call.key is not None
        assert call.value is not None
        slots, key = call.metadata.slot_mapping, call.key
        self.write_kv(KVWrite(layer=call.layer, key=key, value=call.value, kv_cache=call.kv_cache, slot_mapping=slots))
        super().forward(call)


class FusedForgetsTheLastToken(Fused, ForgetsTheLastToken):
    pass


@dataclass(frozen=True)
class Row:
    """A request that holds blocks; scheduled if `num_tokens` > 0."""

    request_id: str
    tables: tuple[tuple[int, ...], ...]
    computed: int
    num_tokens: int = 0
    is_new: bool = False


def layer_of(index: int, window: int | None = None) -> AttentionLayer:
    kind = "full" if window is None else "sliding_window"
    return AttentionLayer(
        name=f"layer.{index}",
        index=index,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        scale=0.3,
        kind=kind,
        sliding_window=window,
    )


class Engine:
    """The sanitized dispatch under steps made by hand. `windows`: one KV group of two layers for each."""

    def __init__(self, backend: type[PlainAttention], windows: tuple[int | None, ...] = (None,), *, dtype: torch.dtype = torch.float32):
        self.generator = torch.Generator().manual_seed(1)
        memories = [torch.zeros((NUM_BLOCKS, 2, BLOCK_SIZE, KV_HEADS, DIM), dtype=dtype) for _ in range(2)]
        self.groups, self.layers, backends = [], [], []
        for group, window in enumerate(windows):
            members = tuple(layer_of(2 * group + place, window) for place in range(2))
            self.groups.append(
                KVGroup(
                    index=group,
                    layer_names=tuple(layer.name for layer in members),
                    sliding_window=window,
                    block_size=BLOCK_SIZE,
                    bytes_per_block=1,
                )
            )
            self.layers += [BoundLayer(layer=layer, group=group, kv_cache=memories[place]) for place, layer in enumerate(members)]
            instance = backend(setup_of(members))
            backends.append(GroupBackends(prefill=instance, decode=instance))
        self.dispatch = SanitizedAttentionDispatch(self.layers, backends, self.groups)

    def step(
        self, *rows: Row, copies: tuple[BlockCopy, ...] = (), num_padding: int = 0, key: torch.Tensor | None = None, **wrong: Any
    ) -> Any:
        """`wrong`: fields of the metadata that differ from what the rows say. Returns the layers' outputs."""
        scheduled = [row for row in rows if row.num_tokens]
        self.dispatch.before_step(
            scheduler_output(rows, copies),
            SimpleNamespace(request_ids=[row.request_id for row in scheduled], num_rows=len(scheduled)),  # type: ignore[arg-type]
        )
        copy_blocks(self.layers, copies)
        commons = [replace(common_of(scheduled, group, num_padding), **wrong) for group in range(len(self.groups))]
        self.dispatch.begin_step(commons)
        num_tokens, outputs = commons[0].num_tokens, []
        for bound in self.layers:
            query = torch.randn((num_tokens, HEADS, DIM), generator=self.generator)
            k, v = (torch.randn((num_tokens, KV_HEADS, DIM), generator=self.generator) for _ in range(2))
            outputs.append(self.dispatch.attend(bound.layer.index, query, k if key is None else key, v))
        self.dispatch.end_step()
        return outputs


def setup_of(layers: tuple[AttentionLayer, ...]) -> AttentionSetup:
    return AttentionSetup(
        layers=layers,
        block_size=BLOCK_SIZE,
        kv_layout="nhd",
        dtype="float32",
        kv_dtype="float32",
        device="cpu",
        max_num_reqs=4,
        max_num_batched_tokens=32,
        max_model_len=32,
    )


def scheduler_output(rows: tuple[Row, ...], copies: tuple[BlockCopy, ...]) -> SchedulerOutput:
    return SchedulerOutput(
        step=0,
        scheduled_new_requests=[
            NewRequestData(
                request_id=row.request_id,
                prompt_token_ids=[],
                sampling_params=SamplingParams(),
                block_ids=row.tables,
                num_computed_tokens=row.computed,
            )
            for row in rows
            if row.is_new
        ],
        scheduled_cached_requests=CachedRequestData(),
        num_scheduled_tokens={row.request_id: row.num_tokens for row in rows if row.num_tokens},
        total_num_scheduled_tokens=sum(row.num_tokens for row in rows),
        block_copies=list(copies),
        held_blocks={row.request_id: HeldBlocks(block_ids=row.tables, num_computed_tokens=row.computed) for row in rows},
    )


def common_of(rows: list[Row], group: int, num_padding: int) -> CommonAttentionMetadata:
    starts = torch.tensor([0, *(row.num_tokens for row in rows)]).cumsum(0).to(torch.int32)
    seq_lens = torch.tensor([row.computed + row.num_tokens for row in rows], dtype=torch.int32)
    width = max(len(row.tables[group]) for row in rows)
    table = torch.tensor([[*row.tables[group], *[0] * (width - len(row.tables[group]))] for row in rows], dtype=torch.int32)
    positions = [row.computed + index for row in rows for index in range(row.num_tokens)]
    slots = [
        row.tables[group][(row.computed + index) // BLOCK_SIZE] * BLOCK_SIZE + (row.computed + index) % BLOCK_SIZE
        for row in rows
        for index in range(row.num_tokens)
    ]
    return CommonAttentionMetadata(
        num_reqs=len(rows),
        num_tokens=len(slots) + num_padding,
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens,
        block_table=table,
        slot_mapping=torch.tensor(slots + [-1] * num_padding),
        positions=torch.tensor(positions + [0] * num_padding),
        max_query_len=max(row.num_tokens for row in rows),
        max_seq_len=int(seq_lens.max()),
        is_prefilling=torch.tensor([row.computed == 0 for row in rows]),
    )


def run_scenario(engine: Engine) -> None:
    """Two prompts; a decode step of both; then a has ended, b moves to its row, and c gets one of its blocks."""
    engine.step(Row("a", ((3, 5),), 0, 6, is_new=True), Row("b", ((2,),), 0, 3, is_new=True), num_padding=1)
    engine.step(Row("a", ((3, 5),), 6, 1), Row("b", ((2,),), 3, 1))
    engine.step(Row("b", ((2, 7),), 4, 1), Row("c", ((3,),), 0, 2, is_new=True))


FAULTS = [
    (ReadsOneSlotPastSeqLen, KVFault.READ_PAST_SEQ_LEN, "a", 5, 22),
    (GathersWholeBlocksAndMasksTheScores, KVFault.READ_PAST_SEQ_LEN, "a", 5, 22),
    (ReadsTheTablesPadding, KVFault.READ_NULL_BLOCK, "b", 0, 0),
    (KeepsTheFirstTable, KVFault.READ_FOREIGN_BLOCK, "b", 3, 14),
    (KeepsTheSecondColumn, KVFault.READ_FREE_BLOCK, "b", 5, 20),
    (ReadsTheFirstRowsTable, KVFault.READ_FOREIGN_BLOCK, "b", 3, 12),
    (WritesPadding, KVFault.PADDING_WRITE, None, 11, 47),
    (WritesOneSlotTooFar, KVFault.STRAY_WRITE, None, 0, 0),
    (WritesTheLastTokenToAnother, KVFault.STRAY_WRITE, "a", 5, 22),
    (ForgetsTheLastToken, KVFault.MISSING_WRITE, "b", 2, 11),
    (WritesKInPlaceOfV, KVFault.WRONG_VALUE, "a", 3, 12),
    (ExchangesKAndV, KVFault.WRONG_VALUE, "a", 3, 12),
    (ExchangesTokens, KVFault.WRONG_VALUE, "a", 3, 12),
    (OverwritesTheFirstBlockOfASequence, KVFault.STRAY_WRITE, "a", 3, 13),
    (ScalesTheCacheInForward, KVFault.CHANGED_OUT_OF_TURN, "a", 3, 12),
    (FusedForgetsTheLastToken, KVFault.MISSING_WRITE, "b", 2, 11),
]


@pytest.mark.parametrize(("backend", "fault", "request_id", "block", "slot"), FAULTS, ids=[entry[0].__name__ for entry in FAULTS])
def test_a_faulty_backend_is_named_with_layer_request_and_block(
    backend: type[PlainAttention], fault: KVFault, request_id: str | None, block: int, slot: int
) -> None:
    with pytest.raises(KVSanitizerError) as caught:
        run_scenario(Engine(backend))
    error = caught.value
    assert (error.fault, error.layer, error.request_id, error.block_id, error.slot) == (fault, "layer.1", request_id, block, slot), error
    for word in ("'layer.1'", backend.__name__, f"slot {slot} of block {block}", *([repr(request_id)] if request_id else [])):
        assert word in str(error)


@pytest.mark.parametrize("backend", [PlainAttention, Fused])
@pytest.mark.parametrize("windows", [(None,), (3,), (None, 3)])
def test_a_right_backend_raises_no_alarm(backend: type[PlainAttention], windows: tuple[int | None, ...]) -> None:
    engine = Engine(backend, windows)
    short, long = (((2,), (4,)), ((2, 7), (4, 6)))
    engine.step(Row("b", short[: len(windows)], 0, 3, is_new=True))
    engine.step(Row("b", short[: len(windows)], 3, 1))
    assert all(not output.isnan().any() for output in engine.step(Row("b", long[: len(windows)], 4, 1)))


def test_a_read_before_the_window_is_told_from_one_past_the_end() -> None:
    with pytest.raises(KVSanitizerError, match=r"position 3 lies before position 4") as caught:
        run_scenario(Engine(ReadsOneBeforeTheWindow, (3,)))
    assert (caught.value.fault, caught.value.request_id, caught.value.slot) == (KVFault.READ_OUT_OF_WINDOW, "a", 15)


def test_a_write_to_another_layers_cache_is_found_at_the_end_of_the_step() -> None:
    with pytest.raises(KVSanitizerError, match="after this layer's turn") as caught:
        run_scenario(Engine(WritesToTheLayerBefore))
    assert (caught.value.fault, caught.value.layer, caught.value.slot) == (KVFault.CHANGED_OUT_OF_TURN, "layer.0", 12)


def test_a_stray_write_says_whose_token_it_was() -> None:
    with pytest.raises(KVSanitizerError, match="holds the K of position 2 of request 'b'"):
        run_scenario(Engine(WritesTheLastTokenToAnother))


class ReadsTheOtherGroup(Faulty):
    """One key is looked up five blocks further on, as when a table is taken from another group."""

    key = 0

    def wrong_places(self, layer: Any, common: Any, row: int, position: int, right: Any) -> Any:
        return [(block + 5 * (offset == self.key), offset) for block, offset in right] if position == 3 else right


class ReadsTheOtherGroupsUnwrittenSlot(ReadsTheOtherGroup):
    key = 3


@pytest.mark.parametrize("backend", [ReadsTheOtherGroup, ReadsTheOtherGroupsUnwrittenSlot])
def test_a_block_of_another_kv_group_in_the_same_memory_is_foreign(backend: type[ReadsTheOtherGroup]) -> None:
    engine = Engine(backend, (None, 3))
    engine.step(Row("a", ((3,), (8,)), 0, 3, is_new=True))
    with pytest.raises(KVSanitizerError, match="KV group 1, whose layers use the same memory") as caught:
        engine.step(Row("a", ((3,), (8,)), 3, 1))
    assert (caught.value.fault, caught.value.slot) == (KVFault.READ_FOREIGN_BLOCK, 32 + backend.key)


def test_a_hit_brings_back_what_a_freed_block_held() -> None:
    engine = Engine(PlainAttention)
    engine.step(Row("a", ((3, 5),), 0, 6, is_new=True), Row("b", ((2,),), 0, 3, is_new=True))
    before = engine.layers[0].kv_cache[3].clone()
    engine.step(Row("b", ((2,),), 3, 1))
    assert engine.layers[0].kv_cache[3].isnan().all()
    engine.step(Row("c", ((3, 6),), 4, 2, is_new=True))
    assert engine.layers[0].kv_cache[3].equal(before)


def test_a_request_may_hit_in_the_step_that_computes_the_block() -> None:
    Engine(PlainAttention).step(Row("a", ((3, 5),), 0, 6, is_new=True), Row("b", ((3, 6),), 4, 2, is_new=True))


def test_a_block_given_out_anew_may_be_hit_in_the_same_step_and_copied_from_later() -> None:
    engine = Engine(PlainAttention)
    engine.step(Row("a", ((3,),), 0, 4, is_new=True))
    engine.step(Row("z", ((9,),), 0, 1, is_new=True))
    engine.step(Row("b", ((3, 5),), 0, 6, is_new=True), Row("c", ((3, 6),), 4, 2, is_new=True))
    copy = BlockCopy(group=0, source_block=3, target_block=7, num_tokens=3)
    engine.step(Row("b", ((3, 5),), 6, 1), Row("d", ((7,),), 3, 1, is_new=True), copies=(copy,))
    assert engine.layers[1].kv_cache[7, :, :3].equal(engine.layers[1].kv_cache[3, :, :3])


def test_a_partial_block_is_copied_from_a_freed_source_that_is_given_out_anew() -> None:
    engine = Engine(PlainAttention)
    engine.step(Row("a", ((3, 5),), 0, 6, is_new=True), Row("b", ((2,),), 0, 3, is_new=True))
    before = engine.layers[1].kv_cache[5, :, :2].clone()
    engine.step(Row("b", ((2,),), 3, 1))
    copy = BlockCopy(group=0, source_block=5, target_block=7, num_tokens=2)
    engine.step(Row("c", ((3, 7),), 6, 2, is_new=True), Row("d", ((5,),), 0, 1, is_new=True), copies=(copy,))
    assert engine.layers[1].kv_cache[7, :, :2].equal(before)
    assert engine.layers[1].kv_cache[5, :, 1].isnan().all()


def test_a_copy_that_brings_over_something_else_is_found() -> None:
    engine = Engine(PlainAttention)
    engine.step(Row("a", ((3,),), 0, 4, is_new=True))
    copy = BlockCopy(group=0, source_block=3, target_block=7, num_tokens=2)
    output = scheduler_output((Row("b", ((7,),), 2, 1, is_new=True),), (copy,))
    engine.dispatch.guard.before_copies(output, ["b"])
    with pytest.raises(KVSanitizerError, match="from block 3 to block 7"):
        engine.dispatch.guard.begin_step()


def test_after_an_error_the_memory_is_right_and_other_requests_go_on() -> None:
    engine = Engine(OverwritesTheFirstBlockOfASequence)
    engine.step(Row("a", ((3,),), 0, 3, is_new=True))
    with pytest.raises(KVSanitizerError):
        engine.step(Row("a", ((3,),), 3), Row("b", ((5,),), 0, 2, is_new=True))
    engine.step(Row("a", ((3,),), 3, 1))
    engine.step(Row("c", ((5,),), 0, 1, is_new=True))
    assert engine.layers[0].kv_cache[5, :, 1].isnan().all()


def test_what_a_failed_step_wrote_does_not_count() -> None:
    engine = Engine(ForgetsTheLastToken)
    with pytest.raises(KVSanitizerError):
        engine.step(Row("a", ((3,),), 0, 3, is_new=True))
    assert not engine.layers[0].kv_cache[3, :, :3].isnan().any()
    engine.step(Row("a", ((3,),), 0), Row("b", ((5,),), 0, 2, is_new=True), num_padding=1)
    assert engine.layers[0].kv_cache[3].isnan().all()


@pytest.mark.parametrize("place", ["key", "slot of the own block"])
def test_a_nan_that_the_model_made_is_no_fault_of_the_backend(place: str) -> None:
    engine = Engine(PlainAttention)
    key = torch.full((3, KV_HEADS, DIM), float("nan"))
    outputs = engine.step(Row("a", ((3,),), 0, 3, is_new=True), key=key)
    assert outputs[0].isnan().any()
    if place != "key":
        assert engine.step(Row("a", ((3,),), 3, 1))[0].isnan().all()


CONTRADICTIONS: dict[str, tuple[tuple[Row, ...], KVFault, str]] = {
    "a block given out while another holds it": (
        (Row("a", ((3, 5),), 6, 1), Row("c", ((5,),), 0, 1, is_new=True)),
        KVFault.SHARED_BLOCK,
        "block 5 to request 'c'",
    ),
    "a block given out twice": (
        (Row("c", ((7,),), 0, 1, is_new=True), Row("d", ((7,),), 0, 1, is_new=True)),
        KVFault.SHARED_BLOCK,
        "block 7 to request 'd'",
    ),
    "a hit on a block never given out": ((Row("c", ((9, 7),), 4, 1, is_new=True),), KVFault.FALSE_HIT, "block 9"),
    "a hit on a block that was not filled": ((Row("c", ((5, 7),), 4, 1, is_new=True),), KVFault.FALSE_HIT, "slot 22 of block 5"),
    "a shared block that is written": (
        (Row("a", ((3, 5),), 6), Row("c", ((3, 5),), 5, 1, is_new=True)),
        KVFault.SHARED_BLOCK,
        "slot 21 of block 5",
    ),
    "a table that ends too early": ((Row("a", ((3,),), 6, 1),), KVFault.WRONG_TABLE, "position 6"),
    "the null block to be written": ((Row("a", ((3, 0),), 6, 1),), KVFault.SHARED_BLOCK, "null block"),
}


@pytest.mark.parametrize(("rows", "fault", "words"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_kv_cache_manager_that_contradicts_itself_is_caught(rows: tuple[Row, ...], fault: KVFault, words: str) -> None:
    engine = Engine(PlainAttention)
    engine.step(Row("a", ((3, 5),), 0, 6, is_new=True))
    output = scheduler_output(rows, ())
    engine.dispatch.guard.before_copies(output, [row.request_id for row in rows if row.num_tokens])
    with pytest.raises(KVSanitizerError, match=words) as caught:
        engine.dispatch.guard.begin_step()
    assert caught.value.fault is fault


def test_a_hit_across_kv_groups_is_caught() -> None:
    engine = Engine(PlainAttention, (None, None))
    engine.step(Row("a", ((3,), (4,)), 0, 4, is_new=True))
    with pytest.raises(KVSanitizerError, match="KV of group 0"):
        engine.step(Row("b", ((3, 6), (3, 7)), 4, 1, is_new=True))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("block_table", torch.tensor([[3, 6]], dtype=torch.int32)),
        ("slot_mapping", torch.tensor([12, 13, 14, 15, 21])),
        ("seq_lens", torch.tensor([6], dtype=torch.int32)),
    ],
)
def test_a_batch_that_differs_from_what_was_given_out_is_caught(field: str, wrong: Any) -> None:
    with pytest.raises(KVSanitizerError, match="Row 0 of the batch") as caught:
        Engine(PlainAttention).step(Row("a", ((3, 5),), 0, 5, is_new=True), **{field: wrong})
    assert (caught.value.fault, caught.value.request_id) == (KVFault.WRONG_TABLE, "a")


def test_dropped_tokens_are_poisoned_and_may_be_written_again() -> None:
    engine = Engine(PlainAttention)
    engine.step(Row("a", ((3,),), 0, 4, is_new=True))
    engine.step(Row("a", ((3,),), 2, 1))
    assert engine.layers[0].kv_cache[3, :, 3].isnan().all()


def test_rounding_to_the_storage_dtype_is_no_wrong_value() -> None:
    Engine(RoundsToStorage, dtype=torch.bfloat16).step(Row("a", ((3, 5),), 0, 6, is_new=True))


class RoundsToStorage(PlainAttention):
    def forward(self, call: AttentionCall) -> None:
        super().forward(replace(call, kv_cache=call.kv_cache.float()))


def test_layers_of_different_shape_see_the_same_slots_poisoned_and_kept() -> None:
    buffer = torch.zeros(3 * 2 * BLOCK_SIZE * 16)
    wide, narrow = buffer.view(3, 2, BLOCK_SIZE, 1, 16), buffer.view(3, 2, 2, BLOCK_SIZE, 8).transpose(2, 3)  # nhd, hnd
    memory = GuardedMemory(wide)
    slots = LayerSlots(memory, narrow)
    narrow[1, :, 2] = 1.0
    assert (memory.changed_blocks(), slots.changed_offsets(1)) == ([1], [2])
    slots.accept(torch.tensor([BLOCK_SIZE + 2]))
    memory.hide([1])
    assert buffer.isnan().all()
    memory.show([1])
    assert narrow[1, :, 2].eq(1.0).all()
    assert int(buffer.isnan().sum()) == buffer.numel() - 2 * 2 * 8


def test_a_dtype_without_nan_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not have"):
        Engine(PlainAttention, dtype=torch.int8)


def test_a_private_layout_is_refused() -> None:
    bound = BoundLayer(layer=layer_of(0), group=0, kv_cache=torch.zeros(NUM_BLOCKS, 64))
    group = KVGroup(index=0, layer_names=("layer.0",), block_size=BLOCK_SIZE, bytes_per_block=1)
    with pytest.raises(ConfigError, match="standard KV layouts"):
        SanitizedAttentionDispatch([bound], [], [group])


@given(st.integers(min_value=1, max_value=70))
def test_separating_subsets_tell_any_two_rows_apart(num_rows: int) -> None:
    subsets = [set(subset) for subset in separating_subsets(num_rows)]
    for first in range(num_rows):
        assert any(first in subset for subset in subsets)
        for second in range(num_rows):
            assert first == second or any(first in subset and second not in subset for subset in subsets)


@given(st.integers(0, 60), st.one_of(st.none(), st.integers(1, 20)), st.one_of(st.none(), st.integers(1, 20)))
def test_first_visible_is_the_smallest_position_that_window_and_chunk_allow(position: int, window: int | None, chunk: int | None) -> None:
    layer = replace(layer_of(0), sliding_window=window, chunk_len=chunk)
    seen = [
        key
        for key in range(position + 1)
        if (window is None or position - key < window) and (chunk is None or key // chunk == position // chunk)
    ]
    assert first_visible(layer, position) == seen[0]
