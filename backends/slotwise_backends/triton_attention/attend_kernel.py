"""The attention kernel: one tile of query rows of one request and one KV head, against a range of that request's keys.

The query heads of a KV head are stacked into the tile, so that K and V are read once for all of them:

    lane m of a tile = query token m // GROUP, query head m % GROUP            (GROUP = query heads per KV head)

Keys are visited in tiles of BLOCK_N positions that begin at multiples of BLOCK_N, whatever the row sees; what it does not see leaves
its sums untouched bit for bit. So a row's result does not depend on who shares its tile. A head dimension is cut into a power of two (D1)
and a rest (D2), as the matrix units want it: 192 = 128 + 64.

With more than one part (splits of the keys, or a cascade's prefix), each writes its normalised sums and LSE for `merge_kernel`.

What this file does not know: Python objects; see `launch` for where each argument comes from.
"""

from __future__ import annotations

import triton
import triton.language as tl

NOT_CAUSAL: tl.constexpr = tl.constexpr(0)
CAUSAL: tl.constexpr = tl.constexpr(1)
CAUSAL_BY_ROW: tl.constexpr = tl.constexpr(2)


@triton.jit
def _tanh(x):
    """Without libdevice, which the interpreter lacks. Near 0 by its series, since 1 - 2 / (1 + e^2x) would cancel there."""
    square = x * x
    near = x * (
        1.0 + square * (-1.0 / 3 + square * (2.0 / 15 + square * (-17.0 / 315 + square * (62.0 / 2835 - square * 1382.0 / 155925))))
    )
    far = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))
    return tl.where(tl.abs(x) < 0.3, near, far)


@triton.jit
def _load(pointers, mask, UPCAST: tl.constexpr):
    """Elements, 0 where masked. UPCAST: to float32 at once, since the interpreter's bfloat16 arithmetic is wrong."""
    values = tl.load(pointers, mask=mask, other=0.0)
    if UPCAST:
        values = values.to(tl.float32)
    return values


@triton.jit
def _dot(a, b, IEEE: tl.constexpr):
    """Matrix product with float32 sums; float32 inputs are not rounded to TF32."""
    return tl.dot(a, b, input_precision="ieee" if IEEE else "tf32")


@triton.jit
def attend_kernel(
    query,
    key,
    value,
    output,
    lse,
    part_output,
    part_lse,
    tile_row,
    tile_first,
    query_start_loc,
    seq_lens,
    num_keys_of_row,
    block_table,
    causal_of_row,
    custom_mask,
    mask_start,
    sinks,
    alibi_slopes,
    scale,
    k_factor,
    v_factor,
    soft_cap,
    num_rows,
    num_tokens,
    first_part,
    num_splits,
    first_key,
    last_key,
    window,
    chunk_len,
    num_ranks,
    rank,
    query_stride_token,
    query_stride_head,
    key_stride_block,
    key_stride_token,
    key_stride_head,
    value_stride_block,
    value_stride_token,
    value_stride_head,
    table_stride,
    num_heads,
    block_size,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    V1: tl.constexpr,
    V2: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGED: tl.constexpr,
    CAUSALITY: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CHUNK: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    WANTS_LSE: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    IS_PREFIX: tl.constexpr,
    UPCAST: tl.constexpr,
    IEEE: tl.constexpr,
):
    """query: [num_tokens, num_heads, HEAD_DIM]; key, value: cache [blocks, ...] or, if not PAGED, [num_tokens, kv_heads, ...];
    output: [num_tokens, num_heads, VALUE_DIM]; part_output: [parts, num_tokens, num_heads, VALUE_DIM] float32; part_lse: without VALUE_DIM.
    tile_row, tile_first: [tiles] row of each tile (num_rows = none) and its first query token. Keys first_key .. last_key - 1 count.
    IS_PREFIX: all rows are one, and see every key of the range, read through row 0 of the table."""
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    row = tl.load(tile_row + tile)
    if row >= num_rows:
        return
    first_query = tl.load(tile_first + tile)
    if IS_PREFIX:
        query_start = 0
        query_len = num_tokens
        seq_len = last_key
        num_keys = last_key
    else:
        query_start = tl.load(query_start_loc + row)
        query_len = tl.load(query_start_loc + row + 1) - query_start
        seq_len = tl.load(seq_lens + row)
        num_keys = tl.minimum(tl.load(num_keys_of_row + row), last_key)

    lanes = tl.arange(0, BLOCK_M)
    tokens = first_query + lanes // GROUP
    heads = kv_head * GROUP + lanes % GROUP
    is_query = (lanes < BLOCK_M // GROUP * GROUP) & (tokens >= 0) & (tokens < query_len)
    positions = seq_len - query_len + tokens
    rows_of_output = (query_start + tokens).to(tl.int64)

    d1 = tl.arange(0, D1)
    is_d1 = d1 < HEAD_DIM
    query_pointers = query + rows_of_output * query_stride_token + heads * query_stride_head
    q1 = _load(query_pointers[:, None] + d1[None, :], is_query[:, None] & is_d1[None, :], UPCAST)
    if D2 > 0:
        d2 = D1 + tl.arange(0, D2)
        q2 = _load(query_pointers[:, None] + d2[None, :], is_query[:, None] & (d2 < HEAD_DIM)[None, :], UPCAST)

    # The keys that some row of the tile may see.
    lowest = seq_len - query_len + first_query
    highest = tl.minimum(lowest + BLOCK_M // GROUP, seq_len) - 1
    begin = first_key
    end = num_keys
    if HAS_WINDOW:
        begin = tl.maximum(begin, (lowest - window + 1) // num_ranks)
    if HAS_CHUNK:
        begin = tl.maximum(begin, lowest // chunk_len * chunk_len // num_ranks)
    if CAUSALITY == CAUSAL and not HAS_MASK:
        end = tl.minimum(end, highest // num_ranks + 1)
    begin = begin // BLOCK_N * BLOCK_N
    keys_per_split = tl.cdiv(tl.cdiv(tl.maximum(end - begin, 0), BLOCK_N), num_splits) * BLOCK_N
    begin = begin + split * keys_per_split
    end = tl.minimum(end, begin + keys_per_split)

    is_row_causal = True
    if CAUSALITY == CAUSAL_BY_ROW:
        is_row_causal = tl.load(causal_of_row + row) != 0
    if HAS_ALIBI:
        slopes = tl.load(alibi_slopes + heads, mask=is_query, other=0.0)
    if HAS_MASK:
        mask_pointers = custom_mask + tl.load(mask_start + row) + tokens.to(tl.int64) * seq_len

    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    sum1 = tl.zeros([BLOCK_M, V1], tl.float32)
    if V2 > 0:
        sum2 = tl.zeros([BLOCK_M, V2], tl.float32)
    v1 = tl.arange(0, V1)
    is_v1 = v1 < VALUE_DIM
    for tile_start in range(begin, end, BLOCK_N):
        held = tile_start + tl.arange(0, BLOCK_N)
        exists = (held >= first_key) & (held < end)
        if PAGED:
            table_row = 0 if IS_PREFIX else row
            blocks = tl.load(block_table + table_row * table_stride + held // block_size, mask=exists, other=0).to(tl.int64)
            offsets = held % block_size
        else:
            blocks = tl.zeros([BLOCK_N], tl.int64)
            offsets = query_start + held
        key_pointers = key + blocks * key_stride_block + offsets.to(tl.int64) * key_stride_token + kv_head * key_stride_head

        key_positions = held * num_ranks + rank
        visible = exists[None, :] & is_query[:, None]
        if HAS_MASK:
            seen = tl.load(mask_pointers[:, None] + key_positions[None, :], mask=visible & (key_positions < seq_len)[None, :], other=0)
            visible = visible & (seen != 0)
        elif CAUSALITY == CAUSAL:
            visible = visible & (key_positions[None, :] <= positions[:, None])
        elif CAUSALITY == CAUSAL_BY_ROW:
            visible = visible & ((key_positions[None, :] <= positions[:, None]) | (not is_row_causal))
        if HAS_WINDOW:
            visible = visible & (tl.abs(positions[:, None] - key_positions[None, :]) < window)
        if HAS_CHUNK:
            visible = visible & (positions[:, None] // chunk_len == key_positions[None, :] // chunk_len)
        # What nobody sees is not read: it may hold NaN, and 0 * NaN would spread.
        is_seen = tl.max(visible.to(tl.int32), axis=0) > 0

        k1 = _load(key_pointers[None, :] + d1[:, None], is_seen[None, :] & is_d1[:, None], UPCAST)
        scores = _dot(q1, k1.to(q1.dtype), IEEE)
        if D2 > 0:
            k2 = _load(key_pointers[None, :] + d2[:, None], is_seen[None, :] & (d2 < HEAD_DIM)[:, None], UPCAST)
            scores += _dot(q2, k2.to(q2.dtype), IEEE)
        scores = scores * (scale * k_factor)
        if HAS_SOFT_CAP:
            scores = soft_cap * _tanh(scores / soft_cap)
        if HAS_ALIBI:
            scores = scores - slopes[:, None] * tl.abs(positions[:, None] - key_positions[None, :]).to(tl.float32)
        scores = tl.where(visible, scores, float("-inf"))

        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp(scores - base[:, None])
        shrink = tl.where(peak == float("-inf"), 0.0, tl.exp(peak - base))
        total = total * shrink + tl.sum(weights, axis=1)
        value_pointers = value + blocks * value_stride_block + offsets.to(tl.int64) * value_stride_token + kv_head * value_stride_head
        values = _load(value_pointers[:, None] + v1[None, :], is_seen[:, None] & is_v1[None, :], UPCAST)
        sum1 = sum1 * shrink[:, None] + _dot(weights.to(q1.dtype), values.to(q1.dtype), IEEE)
        if V2 > 0:
            v2 = V1 + tl.arange(0, V2)
            values = _load(value_pointers[:, None] + v2[None, :], is_seen[:, None] & (v2 < VALUE_DIM)[None, :], UPCAST)
            sum2 = sum2 * shrink[:, None] + _dot(weights.to(q1.dtype), values.to(q1.dtype), IEEE)
        peak = new_peak

    sees_nothing = peak == float("-inf")
    if IS_WHOLE and HAS_SINKS:
        sink = tl.load(sinks + heads, mask=is_query, other=float("-inf"))
        new_peak = tl.where(sees_nothing, peak, tl.maximum(peak, sink))
        base = tl.where(sees_nothing, 0.0, new_peak)
        shrink = tl.where(sees_nothing, 0.0, tl.exp(peak - base))
        total = total * shrink + tl.where(sees_nothing, 0.0, tl.exp(sink - base))
        sum1 = sum1 * shrink[:, None]
        if V2 > 0:
            sum2 = sum2 * shrink[:, None]
        peak = new_peak
    divisor = tl.where(sees_nothing, 1.0, total)
    found_lse = tl.where(sees_nothing, float("-inf"), peak + tl.log(divisor))
    sum1 = sum1 * v_factor / divisor[:, None]
    if V2 > 0:
        sum2 = sum2 * v_factor / divisor[:, None]
    place = rows_of_output * num_heads + heads
    is_value = is_query[:, None] & is_v1[None, :]
    if IS_WHOLE:
        tl.store(output + place[:, None] * VALUE_DIM + v1[None, :], sum1.to(output.dtype.element_ty), mask=is_value)
        if V2 > 0:
            is_value = is_query[:, None] & (V1 + tl.arange(0, V2) < VALUE_DIM)[None, :]
            tl.store(output + place[:, None] * VALUE_DIM + V1 + tl.arange(0, V2)[None, :], sum2.to(output.dtype.element_ty), mask=is_value)
        if WANTS_LSE:
            tl.store(lse + place, found_lse, mask=is_query)
    else:
        place = place + (first_part + split).to(tl.int64) * num_tokens * num_heads
        tl.store(part_output + place[:, None] * VALUE_DIM + v1[None, :], sum1, mask=is_value)
        if V2 > 0:
            is_value = is_query[:, None] & (V1 + tl.arange(0, V2) < VALUE_DIM)[None, :]
            tl.store(part_output + place[:, None] * VALUE_DIM + V1 + tl.arange(0, V2)[None, :], sum2, mask=is_value)
        tl.store(part_lse + place, found_lse, mask=is_query)
