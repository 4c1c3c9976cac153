"""From logits to ids in one kernel: temperature, min_p, top_k, top_p and the draw, without sorting the vocabulary.

Where a set is cut off is found by bisection over the values themselves: a float's bits, made monotone, are an integer, so 32 steps find
the exact value. Ties are treated as in `truncation`: all ties with the k-th stay, of equals at the edge of the nucleus the lowest ids.
Each program computes ROWS rows, block by block. What this file does not know: why, and on which device.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST: tl.constexpr = tl.constexpr(-(2**31))
HIGHEST: tl.constexpr = tl.constexpr(2**31 - 1)
ROUNDING: tl.constexpr = tl.constexpr(1e-6)
"""As in `truncation`: a mass this close below p, relatively, counts as p."""


@triton.jit
def _ordered(x):
    """Bits of float32 as int32 in the order of the values; -0 equals 0."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(ordered):
    """The inverse."""
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _scaled(logits, rows, columns, is_inside, stride, best, divisor, lowest_logit, lowest_scaled):
    """[ROWS, BLOCK] float32: (logit - best) / divisor, -inf where top_k or min_p drop it."""
    x = tl.load(logits + rows[:, None] * stride + columns[None, :], mask=is_inside, other=float("-inf"))
    scaled = (x - best[:, None]) / divisor[:, None]
    is_kept = (_ordered(x) >= lowest_logit[:, None]) & (scaled >= lowest_scaled[:, None])
    return tl.where(is_kept & is_inside, scaled, float("-inf"))


@triton.jit
def _nucleus(scaled, edge, num_at_edge, num_seen):
    """(scaled, -inf outside of the nucleus; ids at the edge seen so far)."""
    place = _ordered(scaled)
    is_at_edge = (place == edge[:, None]).to(tl.int32)
    number = tl.cumsum(is_at_edge, axis=1) + num_seen[:, None]
    is_kept = (place > edge[:, None]) | ((is_at_edge == 1) & (number <= num_at_edge[:, None]))
    return tl.where(is_kept, scaled, float("-inf")), num_seen + tl.sum(is_at_edge, axis=1)


@triton.jit
def draw_kernel(
    logits,
    best_logits,
    divisors,
    top_k,
    top_p,
    min_p,
    uniforms,
    token_ids,
    processed,
    num_rows,
    vocab_size,
    stride,
    HAS_TOP_K: tl.constexpr,
    HAS_TOP_P: tl.constexpr,
    HAS_MIN_P: tl.constexpr,
    WRITES_PROCESSED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """logits: [num_rows, vocab_size] float32; best_logits, divisors, top_p, min_p: [num_rows] float32; top_k: [num_rows] int32; uniforms:
    [num_rows] float64; token_ids: [num_rows] int64; processed: [num_rows, vocab_size] float32."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = rows < num_rows
    best = tl.load(best_logits + rows, mask=is_row, other=0.0)
    divisor = tl.load(divisors + rows, mask=is_row, other=1.0)
    lowest_logit = tl.full([ROWS], LOWEST, tl.int32)
    lowest_scaled = tl.full([ROWS], float("-inf"), tl.float32)
    if HAS_MIN_P:
        ratio = tl.load(min_p + rows, mask=is_row, other=0.0)
        lowest_scaled = tl.where(ratio > 0, tl.log(tl.maximum(ratio, 1e-38)), float("-inf"))
    if HAS_TOP_K:
        k = tl.load(top_k + rows, mask=is_row, other=0)
        k = tl.where((k < 1) | (k > vocab_size), vocab_size, k)
        low = tl.full([ROWS], LOWEST, tl.int64)
        high = tl.full([ROWS], HIGHEST, tl.int64)
        for _ in range(32):  # the largest value that at least k logits reach
            middle = low + (high - low + 1) // 2
            count = tl.zeros([ROWS], tl.int32)
            for start in range(0, vocab_size, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                is_inside = is_row[:, None] & (columns < vocab_size)[None, :]
                x = tl.load(logits + rows[:, None] * stride + columns[None, :], mask=is_inside, other=float("-inf"))
                count += tl.sum((is_inside & (_ordered(x).to(tl.int64) >= middle[:, None])).to(tl.int32), axis=1)
            is_reached = count >= k
            low = tl.where(is_reached, middle, low)
            high = tl.where(is_reached, high, middle - 1)
        lowest_logit = low.to(tl.int32)

    edge = tl.full([ROWS], LOWEST, tl.int32)
    num_at_edge = tl.full([ROWS], HIGHEST, tl.int32)
    if HAS_TOP_P:
        p = tl.load(top_p + rows, mask=is_row, other=1.0)
        total = tl.zeros([ROWS], tl.float64)
        for start in range(0, vocab_size, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            is_inside = is_row[:, None] & (columns < vocab_size)[None, :]
            scaled = _scaled(logits, rows, columns, is_inside, stride, best, divisor, lowest_logit, lowest_scaled)
            total += tl.sum(tl.exp(scaled).to(tl.float64), axis=1)
        limit = p.to(tl.float64) * (1.0 - ROUNDING) * total
        low = tl.full([ROWS], LOWEST, tl.int64)
        high = tl.full([ROWS], HIGHEST, tl.int64)
        for _ in range(32):  # the smallest value whose betters have less mass than the limit
            middle = low + (high - low) // 2
            mass = tl.zeros([ROWS], tl.float64)
            for start in range(0, vocab_size, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                is_inside = is_row[:, None] & (columns < vocab_size)[None, :]
                scaled = _scaled(logits, rows, columns, is_inside, stride, best, divisor, lowest_logit, lowest_scaled)
                is_better = _ordered(scaled).to(tl.int64) > middle[:, None]
                mass += tl.sum(tl.where(is_better, tl.exp(scaled), 0.0).to(tl.float64), axis=1)
            is_small = mass < limit
            high = tl.where(is_small, middle, high)
            low = tl.where(is_small, low, middle + 1)
        found = low.to(tl.int32)
        mass = tl.zeros([ROWS], tl.float64)
        for start in range(0, vocab_size, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            is_inside = is_row[:, None] & (columns < vocab_size)[None, :]
            scaled = _scaled(logits, rows, columns, is_inside, stride, best, divisor, lowest_logit, lowest_scaled)
            mass += tl.sum(tl.where(_ordered(scaled) > found[:, None], tl.exp(scaled), 0.0).to(tl.float64), axis=1)
        weight = tl.exp(_value(found)).to(tl.float64)
        needed = tl.ceil((limit - mass) / tl.maximum(weight, 1e-300))
        needed = tl.minimum(tl.maximum(needed, 1.0), 2.0e9).to(tl.int32)
        edge = tl.where(p < 1.0, found, edge)
        num_at_edge = tl.where(p < 1.0, needed, num_at_edge)

    total = tl.zeros([ROWS], tl.float64)
    num_seen = tl.zeros([ROWS], tl.int32)
    last = tl.zeros([ROWS], tl.int32)
    for start in range(0, vocab_size, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        is_inside = is_row[:, None] & (columns < vocab_size)[None, :]
        scaled = _scaled(logits, rows, columns, is_inside, stride, best, divisor, lowest_logit, lowest_scaled)
        if HAS_TOP_P:
            scaled, num_seen = _nucleus(scaled, edge, num_at_edge, num_seen)
        if WRITES_PROCESSED:
            tl.store(processed + rows[:, None] * stride + columns[None, :], scaled, mask=is_inside)
        weights = tl.exp(scaled)
        total += tl.sum(weights.to(tl.float64), axis=1)
        last = tl.maximum(last, tl.max(tl.where(weights > 0.0, columns[None, :], 0), axis=1))

    target = tl.load(uniforms + rows, mask=is_row, other=0.0) * total
    sum_before = tl.zeros([ROWS], tl.float64)
    num_seen = tl.zeros([ROWS], tl.int32)
    token = tl.full([ROWS], HIGHEST, tl.int32)
    for start in range(0, vocab_size, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        is_inside = is_row[:, None] & (columns < vocab_size)[None, :]
        scaled = _scaled(logits, rows, columns, is_inside, stride, best, divisor, lowest_logit, lowest_scaled)
        if HAS_TOP_P:
            scaled, num_seen = _nucleus(scaled, edge, num_at_edge, num_seen)
        weights = tl.exp(scaled).to(tl.float64)
        sums = tl.cumsum(weights, axis=1) + sum_before[:, None]
        is_hit = (sums > target[:, None]) & (weights > 0.0)
        token = tl.minimum(token, tl.min(tl.where(is_hit, columns[None, :], HIGHEST), axis=1))
        sum_before += tl.sum(weights, axis=1)
    tl.store(token_ids + rows, tl.where(token == HIGHEST, last, token).to(tl.int64), mask=is_row)
