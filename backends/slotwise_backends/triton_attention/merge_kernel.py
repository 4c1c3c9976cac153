"""Parts of one result into the whole: output = sum of part * exp(lse - total lse). The sink joins here, once.

Source: Dao et al. 2023 (Flash-Decoding); the algebra is that of a softmax over a partition of its keys.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def merge_kernel(
    part_output,
    part_lse,
    output,
    lse,
    sinks,
    num_parts,
    num_tokens,
    num_heads,
    VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    WANTS_LSE: tl.constexpr,
):
    """part_output: [num_parts, num_tokens, num_heads, VALUE_DIM] float32; part_lse: [num_parts, num_tokens, num_heads]; one program per
    token and head. A part that saw nothing has LSE -inf and counts nothing."""
    place = tl.program_id(0).to(tl.int64) * num_heads + tl.program_id(1)
    stride = num_tokens * num_heads
    peak = tl.load(part_lse + place)
    for part in range(1, num_parts):
        peak = tl.maximum(peak, tl.load(part_lse + part * stride + place))
    sees_nothing = peak == float("-inf")
    if HAS_SINKS:
        sink = tl.load(sinks + tl.program_id(1))
        peak = tl.maximum(peak, sink)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.exp(tl.load(part_lse + place) - base) * 0.0
    dims = tl.arange(0, BLOCK_V)
    is_value = dims < VALUE_DIM
    summed = tl.zeros([BLOCK_V], tl.float32)
    for part in range(num_parts):
        weight = tl.exp(tl.load(part_lse + part * stride + place) - base)
        total += weight
        summed += weight * tl.load(part_output + (part * stride + place) * VALUE_DIM + dims, mask=is_value, other=0.0)
    if HAS_SINKS:
        total += tl.exp(sink - base)
    divisor = tl.where(sees_nothing, 1.0, total)
    result = tl.where(sees_nothing, 0.0, summed / divisor)
    tl.store(output + place * VALUE_DIM + dims, result.to(output.dtype.element_ty), mask=is_value)
    if WANTS_LSE:
        tl.store(lse + place, tl.where(sees_nothing, float("-inf"), base + tl.log(divisor)))
