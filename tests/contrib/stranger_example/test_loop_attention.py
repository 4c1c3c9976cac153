"""The example backend computes plain causal attention over the paged cache, whatever lies in slots that nobody may see."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from slotwise.interfaces.attention import (
    AttentionCall,
    AttentionLayer,
    AttentionSetup,
    CommonAttentionMetadata,
    KVLayoutRequest,
    KVWrite,
    MetadataRequest,
)

BLOCK_SIZE, NUM_BLOCKS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 16, 4, 2, 8
QUERY_LENS, SEQ_LENS = [1, 3, 6], [9, 7, 6]
LAYER = AttentionLayer(name="l", index=0, num_heads=NUM_HEADS, num_kv_heads=NUM_KV_HEADS, head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5)


def make_backend(layout: str, **options: float):
    from slotwise_stranger.loop_attention import LoopAttention
    from slotwise_stranger.loop_attention_component import LoopAttentionOptions

    return LoopAttention(
        AttentionSetup(
            layers=(LAYER,),
            block_size=BLOCK_SIZE,
            kv_layout=layout,
            dtype="float32",
            kv_dtype="float32",
            device="cpu",
            max_num_reqs=8,
            max_num_batched_tokens=64,
            max_model_len=64,
            options=LoopAttentionOptions(**options),
        )
    )


@pytest.fixture
def batch():
    """A decode row, a chunk on top of a context, a fresh prompt; blocks in no order, null blocks behind them."""
    starts = torch.tensor([0, *torch.tensor(QUERY_LENS).cumsum(0).tolist()], dtype=torch.int32)
    positions = torch.cat([torch.arange(seq - query, seq) for query, seq in zip(QUERY_LENS, SEQ_LENS, strict=True)])
    table = torch.tensor([[9, 2, 11, 0], [5, 14, 0, 0], [3, 8, 0, 0]], dtype=torch.int32)
    rows = torch.repeat_interleave(torch.arange(3), torch.tensor(QUERY_LENS))
    slots = table[rows, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
    seq_lens = torch.tensor(SEQ_LENS, dtype=torch.int32)
    return CommonAttentionMetadata(
        num_reqs=3,
        num_tokens=sum(QUERY_LENS),
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens,
        block_table=table,
        slot_mapping=slots,
        positions=positions,
        max_query_len=max(QUERY_LENS),
        max_seq_len=max(SEQ_LENS),
        is_prefilling=torch.tensor([False, True, True]),
    )


def run(backend, batch, layout: str):
    """Output of the backend, and of dense float64 attention, on random K, V and Q; every slot outside the sequences is NaN."""
    generator = torch.Generator().manual_seed(0)
    shape = backend.kv_cache_layout(
        KVLayoutRequest(
            name=layout, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, num_kv_heads=NUM_KV_HEADS, head_dim=HEAD_DIM, dtype="float32"
        )
    )
    memory = torch.full([shape.shape[dim] for dim in shape.stride_order], float("nan"))
    cache = memory.permute([shape.stride_order.index(dim) for dim in range(len(shape.shape))])
    query = torch.randn(batch.num_tokens, NUM_HEADS, HEAD_DIM, generator=generator)
    expected = torch.empty(batch.num_tokens, NUM_HEADS, HEAD_DIM, dtype=torch.float64)
    for row, seq_len in enumerate(SEQ_LENS):
        key, value = torch.randn(2, seq_len, NUM_KV_HEADS, HEAD_DIM, generator=generator)
        where = torch.arange(seq_len)
        slots = batch.block_table[row, where // BLOCK_SIZE].long() * BLOCK_SIZE + where % BLOCK_SIZE
        backend.write_kv(KVWrite(layer=LAYER, key=key, value=value, kv_cache=cache, slot_mapping=slots))
        for token in range(int(batch.query_start_loc[row]), int(batch.query_start_loc[row + 1])):
            seen = int(batch.positions[token]) + 1
            for head in range(NUM_HEADS):
                kv_head = head // (NUM_HEADS // NUM_KV_HEADS)
                scores = key[:seen, kv_head].double() @ query[token, head].double() * LAYER.scale
                expected[token, head] = scores.softmax(0) @ value[:seen, kv_head].double()
    output = torch.full_like(query, float("nan"))
    metadata = backend.build_metadata(MetadataRequest(common=batch))
    backend.forward(AttentionCall(layer=LAYER, query=query, key=None, value=None, kv_cache=cache, metadata=metadata, output=output))
    return output, expected


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
def test_ragged_batch_equals_dense_float64_attention(batch, layout):
    output, expected = run(make_backend(layout), batch, layout)
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=1e-6)


def test_softmax_temperature_divides_the_scores(batch):
    hot, _ = run(make_backend("nhd", softmax_temperature=3.0), batch, "nhd")
    output, _ = run(make_backend("nhd"), batch, "nhd")
    only_key = int(batch.query_start_loc[2])  # first token of the fresh prompt: one key, so any temperature gives the same
    torch.testing.assert_close(hot[only_key], output[only_key])
    assert (hot - output).abs().amax() > 0.01


def test_tokens_of_padding_become_zero(batch):
    padding = torch.randn(3, NUM_HEADS, HEAD_DIM)
    call = AttentionCall(
        layer=LAYER,
        query=padding,
        key=None,
        value=None,
        kv_cache=torch.empty(0),
        metadata=dataclasses.replace(batch, num_reqs=0, num_tokens=0),
        output=torch.full_like(padding, float("nan")),
    )
    make_backend("nhd").forward(call)
    assert (call.output == 0).all()


def test_profiling_call_writes_zeros(batch):
    output = torch.full((5, NUM_HEADS, HEAD_DIM), float("nan"))
    call = AttentionCall(layer=LAYER, query=output, key=None, value=None, kv_cache=torch.empty(0), metadata=None, output=output.clone())
    make_backend("nhd").forward(call)
    assert (call.output == 0).all()
