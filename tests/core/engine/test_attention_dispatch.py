"""Which backend sees which rows of a layer, and in what order K and V are written and read."""

from __future__ import annotations

from typing import Any

import torch

from slotwise.engine.attention_dispatch import AttentionDispatch, BoundLayer, GroupBackends
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
        return request.common

    def write_kv(self, write: KVWrite) -> None:
        self.log.append(("write", self.number, write.slot_mapping.tolist()))

    def forward(self, call: AttentionCall) -> None:
        self.log.append(("forward", self.number, call.query[:, 0, 0].tolist()))
        call.output.fill_(self.number)


class FusedRecorder(Recorder):
    capabilities = AttentionCapabilities(fused_kv_write=True)


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
