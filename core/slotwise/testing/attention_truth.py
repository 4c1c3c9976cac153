"""What attention is, in float64 and without pages, and how far a computation in a given dtype may be from it.

Written from the definition, over keys and values that never were in a cache, so that no fault in paging can hide on both sides of a
comparison. What this file does not know: backends, block tables, batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from slotwise.interfaces.attention import AttentionLayer


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One request's attention: its query rows, and every key and value that exists."""

    layer: AttentionLayer
    query: torch.Tensor
    """[num_rows, num_heads, head_dim], the model's dtype."""
    key: torch.Tensor
    """[num_keys, num_kv_heads, head_dim] float64, as stored: quantised and scaled back."""
    value: torch.Tensor
    """[num_keys, num_kv_heads, value_dim] float64."""
    visible: torch.Tensor
    """[num_rows, num_keys] bool."""
    distance: torch.Tensor
    """[num_rows, num_keys], |key position - query position|."""
    sinks: torch.Tensor | None = None
    """[num_heads]."""
    alibi_slopes: torch.Tensor | None = None
    """[num_heads]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Output [num_rows, num_heads, value_dim] and natural-log LSE [num_rows, num_heads], with the error a computation may make in each."""

    output: torch.Tensor
    lse: torch.Tensor
    output_error: torch.Tensor
    lse_error: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class _Evaluation:
    output: torch.Tensor
    lse: torch.Tensor
    weights: torch.Tensor
    """[num_heads, num_rows, num_keys]."""
    scores: torch.Tensor
    """The same, before the mask."""


def answer(question: Question, *, is_stored_in_other_dtype: bool) -> Answer:
    """The truth, and the bound on the error of any sound computation in the query's dtype, its LSE kept in float32.

    The bound's shape is a first-order error analysis of the formula, element by element; its size is what the plain evaluation in the
    same dtype, on the same numbers, really needed (see `_calibrate`). `is_stored_in_other_dtype`: the cache's dtype is not the model's, so
    that a backend may round K and V to the model's dtype on the way.
    """
    exact = _evaluate(question, torch.float64)
    plain = _evaluate(question, question.query.dtype)
    output_shape, lse_shape = _first_order_errors(question, exact, is_stored_in_other_dtype=is_stored_in_other_dtype)
    return Answer(
        output=exact.output,
        lse=exact.lse,
        output_error=_calibrate(output_shape, (plain.output - exact.output).abs()),
        lse_error=_calibrate(lse_shape, (plain.lse - exact.lse).abs().nan_to_num(0.0)),
    )


ALLOWANCE = 4.0
"""A backend may err this much more than the plain evaluation or the analysis: sums are taken in another order, and rescaled on the way."""


def _calibrate(shape: torch.Tensor, plain_error: torch.Tensor) -> torch.Tensor:
    """The shape of the bound, scaled so that the plain evaluation's worst error lies within, times `ALLOWANCE`."""
    worst = (plain_error / shape).max().item() if shape.numel() else 0.0
    return shape * ALLOWANCE * max(1.0, worst)


def _evaluate(question: Question, dtype: torch.dtype) -> _Evaluation:
    """The formula as it stands. In a half dtype: sums in float32, weights and results rounded to the dtype, as the field's kernels do."""
    layer = question.layer
    wide = dtype if dtype == torch.float64 else torch.float32
    if question.key.shape[0] == 0:
        return _nothing_to_see(question)
    group_size = layer.num_heads // layer.num_kv_heads
    key, value = (tensor.to(wide).repeat_interleave(group_size, dim=1) for tensor in (question.key, question.value))
    scores = torch.einsum("qhd,khd->hqk", question.query.to(wide), key) * layer.scale
    if layer.logits_soft_cap:
        scores = layer.logits_soft_cap * torch.tanh(scores / layer.logits_soft_cap)
    if question.alibi_slopes is not None:
        scores = scores - question.alibi_slopes.to(wide)[:, None, None] * question.distance.to(wide)
    masked = scores.masked_fill(~question.visible, -math.inf)
    sees_nothing = ~question.visible.any(dim=1)[None, :]
    logits = masked
    if question.sinks is not None:
        logits = torch.cat([masked, question.sinks.to(wide)[:, None, None].expand(-1, masked.shape[1], 1)], dim=2)
    peak = logits.amax(dim=2).masked_fill(sees_nothing, 0.0)
    exponentials, total = torch.exp(masked - peak[..., None]), torch.exp(logits - peak[..., None]).sum(dim=2)
    lse = (peak + torch.log(total)).masked_fill(sees_nothing, -math.inf)
    if wide == dtype:
        weights = exponentials / total.masked_fill(sees_nothing, 1.0)[..., None]
        output = torch.einsum("hqk,khd->qhd", weights, value)
    else:
        weights = exponentials.to(dtype).to(wide)
        output = torch.einsum("hqk,khd->qhd", weights, value) / total.masked_fill(sees_nothing, 1.0).transpose(0, 1)[..., None]
    return _Evaluation(output=output.to(dtype).double(), lse=lse.transpose(0, 1).double(), weights=weights, scores=scores)


def _nothing_to_see(question: Question) -> _Evaluation:
    (num_rows, num_heads, _), value_dim = question.query.shape, question.layer.value_dim
    none = torch.zeros(num_heads, num_rows, 0, dtype=torch.float64)
    return _Evaluation(
        output=torch.zeros(num_rows, num_heads, value_dim, dtype=torch.float64),
        lse=torch.full((num_rows, num_heads), -math.inf, dtype=torch.float64),
        weights=none,
        scores=none,
    )


def _first_order_errors(question: Question, exact: _Evaluation, *, is_stored_in_other_dtype: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Errors of output and LSE to first order in the rounding unit.

    A score errs by ds = u * (scale * sum |q||k| + |score| + |ALiBi|). With weights w and output o = sum w v,
    do = sum w |v - o| ds (the softmax's derivative) + u * sum w |v| (the sum) + r * sum w |v| (weights rounded to the dtype)
    + r * |o| (the result rounded), and d(lse) = sum w ds + s * (1 + |lse|) (it is float32). u: unit of the sums, r: unit of the dtype.
    Source: Higham, Accuracy and Stability of Numerical Algorithms, section 3.
    """
    layer, dtype = question.layer, question.query.dtype
    single = torch.finfo(torch.float32).eps / 2
    unit = torch.finfo(torch.float64).eps / 2 if dtype == torch.float64 else single
    rounding = torch.finfo(dtype).eps / 2
    group_size = layer.num_heads // layer.num_kv_heads
    key, value = (tensor.repeat_interleave(group_size, dim=1) for tensor in (question.key, question.value))
    products = torch.einsum("qhd,khd->hqk", question.query.double().abs(), key.abs()) * layer.scale
    score_error = unit * (products + exact.scores.abs())
    if question.alibi_slopes is not None:
        score_error = score_error + unit * question.alibi_slopes.double().abs()[:, None, None] * question.distance.double()
    if is_stored_in_other_dtype:
        score_error = score_error + rounding * products
    weighted_error = (exact.weights * score_error).transpose(0, 1)
    total_error = weighted_error.sum(dim=2)
    spread = torch.einsum("qhk,khd->qhd", weighted_error, value.abs()) + total_error[..., None] * exact.output.abs()
    magnitude = torch.einsum("hqk,khd->qhd", exact.weights, value.abs())
    output_error = spread + (unit + 2 * rounding) * magnitude + rounding * exact.output.abs() + torch.finfo(dtype).tiny
    lse_error = total_error + single * (1.0 + exact.lse.abs().nan_to_num(0.0, posinf=0.0))
    return output_error, lse_error
