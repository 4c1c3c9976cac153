"""Which backend sees which rows of a layer, and in what order K and V are written and read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from slotwise.engine.attention_dispatch import AttentionDispatch, BoundLayer, GroupBackends
from slotwise.engine.kv_scales import KVScales
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

LAYER = AttentionLayer(name="layer.0", index=0, num_heads=2, num_kv_heads=1, head_dim=4, scale=0.5)


class Recorder(AttentionBackend):
    """Writes its number into the output and notes every call."""

    capabilities = AttentionCapabilities()

    def __init__(self, number: float, log: list[tuple[Any, ...]]) -> None:
        super().__init__(
            AttentionSetup(
                layers=(LAYER,),
                block_size=4,
                kv_layout="nhd",
                dtype="float32",
                kv_dtype="float32",
                device="cpu",
                max_num_reqs=4,
                max_num_batched_tokens=16,
                max_model_len=32,
            )
        )
        self.number, self.log = number, log

    def build_metadata(self, request: MetadataRequest) -> Any:
        self.log.append(("build", self.number, request.common.num_reqs, request.common.num_tokens))
        self.prefix_len = request.common_prefix_len
        return request.common

    def write_kv(self, write: KVWrite) -> None:
        self.log.append(("write", self.number, write.slot_mapping.tolist()))

    def forward(self, call: AttentionCall) -> None:
        self.log.append(("forward", self.number, call.query[:, 0, 0].tolist()))
        call.output.fill_(self.number)


class FusedRecorder(Recorder):
    capabilities = AttentionCapabilities(fused_kv_write=True)


class CascadeRecorder(Recorder):
    capabilities = AttentionCapabilities(cascade=True)


class UpdatingRecorder(CascadeRecorder):
    """Makes another group's metadata over, if `can_update`."""

    can_update = True

    def update_block_table(self, metadata: Any, block_table: torch.Tensor, slot_mapping: torch.Tensor) -> Any:
        self.log.append(("update", self.number, block_table.shape[0]))
        return replace(metadata, block_table=block_table, slot_mapping=slot_mapping) if self.can_update else None


def common(query_lens: list[int], num_decodes: int) -> CommonAttentionMetadata:
    starts = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    num_tokens, num_reqs = int(starts[-1]), len(query_lens)
    seq_lens = torch.full((num_reqs,), 8, dtype=torch.int32)
    return CommonAttentionMetadata(
        num_reqs=num_reqs,
        num_tokens=num_tokens,
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens,
        block_table=torch.zeros((num_reqs, 2), dtype=torch.int32),
        slot_mapping=torch.arange(num_tokens) + 100,
        positions=torch.arange(num_tokens),
        max_query_len=max(query_lens),
        max_seq_len=8,
        is_prefilling=torch.tensor([index >= num_decodes for index in range(num_reqs)]),
        num_decodes=num_decodes,
        num_decode_tokens=num_decodes,
    )


def attend(dispatch: AttentionDispatch, num_tokens: int, *, with_kv: bool = True) -> torch.Tensor:
    query = torch.arange(num_tokens, dtype=torch.float32)[:, None, None].expand(num_tokens, 2, 4)
    kv = torch.zeros((num_tokens, 1, 4)) if with_kv else None
    return dispatch.attend(0, query, kv, kv)


def dispatch_of(prefill: Recorder, decode: Recorder) -> AttentionDispatch:
    bound = BoundLayer(layer=LAYER, group=0, kv_cache=torch.zeros(1))
    return AttentionDispatch([bound], [GroupBackends(prefill=prefill, decode=decode)])


def test_one_backend_sees_the_whole_batch_and_writes_before_it_reads() -> None:
    log: list[tuple[Any, ...]] = []
    backend = Recorder(1.0, log)
    dispatch = dispatch_of(backend, backend)
    assert not dispatch.needs_decodes_first
    dispatch.begin_step([common([1, 3], num_decodes=0)])
    assert attend(dispatch, 4).eq(1.0).all()
    assert log == [("build", 1.0, 2, 4), ("write", 1.0, [100, 101, 102, 103]), ("forward", 1.0, [0.0, 1.0, 2.0, 3.0])]


def test_phases_with_their_own_backends_see_their_own_rows_after_all_kv_is_written() -> None:
    log: list[tuple[Any, ...]] = []
    dispatch = dispatch_of(prefill=Recorder(2.0, log), decode=Recorder(1.0, log))
    assert dispatch.needs_decodes_first
    dispatch.begin_step([common([1, 1, 3], num_decodes=2)])
    output = attend(dispatch, 5)
    assert output[:, 0, 0].tolist() == [1.0, 1.0, 2.0, 2.0, 2.0]
    assert [entry[0] for entry in log] == ["build", "build", "write", "write", "forward", "forward"]
    assert log[2:] == [
        ("write", 1.0, [100, 101]),
        ("write", 2.0, [102, 103, 104]),
        ("forward", 1.0, [0.0, 1.0]),
        ("forward", 2.0, [2.0, 3.0, 4.0]),
    ]


def test_a_phase_without_rows_builds_nothing() -> None:
    log: list[tuple[Any, ...]] = []
    dispatch = dispatch_of(prefill=Recorder(2.0, log), decode=Recorder(1.0, log))
    dispatch.begin_step([common([1, 1], num_decodes=2)])
    assert attend(dispatch, 2).eq(1.0).all()
    assert {entry[1] for entry in log} == {1.0}


def test_a_fused_backend_is_not_asked_to_write() -> None:
    log: list[tuple[Any, ...]] = []
    backend = FusedRecorder(1.0, log)
    dispatch = dispatch_of(backend, backend)
    dispatch.begin_step([common([2], num_decodes=0)])
    attend(dispatch, 2)
    assert [entry[0] for entry in log] == ["build", "forward"]


def test_a_layer_that_shares_kv_writes_none() -> None:
    log: list[tuple[Any, ...]] = []
    backend = Recorder(1.0, log)
    dispatch = dispatch_of(backend, backend)
    dispatch.begin_step([common([2], num_decodes=0)])
    attend(dispatch, 2, with_kv=False)
    assert [entry[0] for entry in log] == ["build", "forward"]


def two_groups(first: Recorder, second: Recorder, **second_layer: Any) -> AttentionDispatch:
    other = replace(LAYER, name="layer.1", index=1, **second_layer)
    layers = [
        BoundLayer(layer=LAYER, group=0, kv_cache=torch.zeros(1)),
        BoundLayer(layer=other, group=1, kv_cache=torch.zeros(1)),
    ]
    return AttentionDispatch(layers, [GroupBackends(prefill=backend, decode=backend) for backend in (first, second)])


def test_metadata_of_one_group_is_made_over_for_the_next_where_class_and_setup_are_equal() -> None:
    log: list[tuple[Any, ...]] = []
    dispatch = two_groups(UpdatingRecorder(1.0, log), UpdatingRecorder(2.0, log))
    first, second = common([1, 3], 0), replace(common([1, 3], 0), slot_mapping=torch.arange(4) + 500)
    dispatch.begin_step([first, second])
    assert log == [("build", 1.0, 2, 4), ("update", 2.0, 2)]
    dispatch.attend(1, torch.zeros(4, 2, 4), torch.zeros(4, 1, 4), torch.zeros(4, 1, 4))
    assert log[2:] == [("write", 2.0, [500, 501, 502, 503]), ("forward", 2.0, [0.0] * 4)]


def test_metadata_is_built_anew_where_the_backend_cannot_make_it_over() -> None:
    log: list[tuple[Any, ...]] = []
    second = UpdatingRecorder(2.0, log)
    second.can_update = False
    two_groups(UpdatingRecorder(1.0, log), second).begin_step([common([2], 0), common([2], 0)])
    assert [entry[:2] for entry in log] == [("build", 1.0), ("update", 2.0), ("build", 2.0)]


@pytest.mark.parametrize("difference", ["class", "setup", "split"])
def test_metadata_is_never_made_over_from_another_kind_of_instance(difference: str) -> None:
    log: list[tuple[Any, ...]] = []
    first: Recorder = CascadeRecorder(1.0, log) if difference == "class" else UpdatingRecorder(1.0, log)
    second = UpdatingRecorder(2.0, log)
    if difference == "setup":
        second.setup = replace(second.setup, kv_layout="hnd")
    dispatch = two_groups(first, second)
    if difference == "split":
        dispatch = AttentionDispatch(
            dispatch.layers, [GroupBackends(prefill=first, decode=Recorder(3.0, log)), GroupBackends(prefill=second, decode=second)]
        )
    dispatch.begin_step([common([2], 0), common([2], 0)])
    assert "update" not in [entry[0] for entry in log]


def long_rows(num_reqs: int, num_computed: int) -> CommonAttentionMetadata:
    lens = torch.full((num_reqs,), num_computed + 1, dtype=torch.int32)
    return replace(common([1] * num_reqs, 0), seq_lens=lens, seq_lens_cpu=lens, max_seq_len=num_computed + 1)


@pytest.mark.parametrize(
    ("num_reqs", "num_computed", "num_blocks", "prefix_len"),
    [
        (8, 400, 100, 400),
        (8, 400, 64, 256),
        (8, 400, 63, 0),  # too short to be worth it
        (7, 400, 100, 0),  # too few rows
        (8, 299, 100, 296),  # whole blocks below every row's first query
        (8, 255, 100, 0),
        (8, 400, 0, 0),
    ],
)
def test_common_prefix_is_announced_in_whole_blocks_where_it_is_worth_it(
    num_reqs: int, num_computed: int, num_blocks: int, prefix_len: int
) -> None:
    backend = CascadeRecorder(1.0, [])
    dispatch_of(backend, backend).begin_step([long_rows(num_reqs, num_computed)], [num_blocks])
    assert backend.prefix_len == prefix_len


def test_common_prefix_is_kept_from_backends_without_the_claim_and_when_nobody_counted() -> None:
    plain, cascading = Recorder(1.0, []), CascadeRecorder(1.0, [])
    dispatch_of(plain, plain).begin_step([long_rows(8, 400)], [100])
    dispatch_of(cascading, cascading).begin_step([long_rows(8, 400)])
    assert (plain.prefix_len, cascading.prefix_len) == (0, 0)


@pytest.mark.parametrize(
    "narrowed",
    [{"kind": "sliding_window", "sliding_window": 4}, {"kind": "chunked_local", "chunk_len": 4}, {"has_alibi": True}],
    ids=["window", "chunk", "alibi"],
)
def test_common_prefix_is_not_announced_to_groups_whose_scores_depend_on_the_place(narrowed: dict[str, Any]) -> None:
    """And metadata built with a prefix is not made over for a group without one."""
    log: list[tuple[Any, ...]] = []
    first, second = UpdatingRecorder(1.0, log), UpdatingRecorder(2.0, log)
    two_groups(first, second, **narrowed).begin_step([long_rows(8, 400)] * 2, [100, 100])
    assert (first.prefix_len, second.prefix_len) == (400, 0)
    assert [entry[0] for entry in log] == ["build", "build"]


def test_each_phase_judges_the_prefix_by_its_own_rows() -> None:
    prefill, decode = CascadeRecorder(1.0, []), CascadeRecorder(2.0, [])
    batch = long_rows(10, 400)
    dispatch_of(prefill, decode).begin_step([replace(batch, num_decodes=8, num_decode_tokens=8)], [100])
    assert (prefill.prefix_len, decode.prefix_len) == (0, 400)


class ScaleRecorder(Recorder):
    def write_kv(self, write: KVWrite) -> None:
        self.log.append(("write", write.k_scale, write.v_scale, write.value is None))

    def forward(self, call: AttentionCall) -> None:
        self.log.append(("forward", call.k_scale, call.v_scale, tuple(call.output.shape)))


def test_scales_of_the_layer_reach_write_and_forward() -> None:
    log: list[tuple[Any, ...]] = []
    backend = ScaleRecorder(1.0, log)
    bound = BoundLayer(layer=LAYER, group=0, kv_cache=torch.zeros(1), scales=KVScales(k=0.5, v=0.25))
    dispatch = AttentionDispatch([bound], [GroupBackends(prefill=backend, decode=backend)])
    dispatch.begin_step([common([2], 0)])
    attend(dispatch, 2)
    assert log[1:] == [("write", 0.5, 0.25, False), ("forward", 0.5, 0.25, (2, 2, 4))]


def test_latent_layers_write_without_value_and_get_output_of_their_value_dimension() -> None:
    log: list[tuple[Any, ...]] = []
    backend = ScaleRecorder(1.0, log)
    bound = BoundLayer(layer=replace(LAYER, latent_value_dim=3), group=0, kv_cache=torch.zeros(1))
    dispatch = AttentionDispatch([bound], [GroupBackends(prefill=backend, decode=backend)])
    dispatch.begin_step([common([2], 0)])
    output = dispatch.attend(0, torch.zeros(2, 2, 4), torch.zeros(2, 1, 4), None)
    assert tuple(output.shape) == (2, 2, 3)
    assert log[1:] == [("write", 1.0, 1.0, True), ("forward", 1.0, 1.0, (2, 2, 3))]
