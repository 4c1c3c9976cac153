"""A stand-in of `flashinfer.sampling`: checks the arguments as the real functions document them, and computes their answers in torch.

Source: the docstrings of `sampling.py` in flashinfer-python 0.6.13; tests/libraries compares the signatures with it.
"""

from __future__ import annotations

import types

import torch


def check(condition, message):
    if not condition:
        raise ValueError(f"flashinfer: {message}")


def _check_rows(values, parameter, dtype):
    check(values.dtype in (torch.float32, torch.float16, torch.bfloat16), f"unsupported dtype {values.dtype}")
    check(values.dim() == 2 and values.is_contiguous(), "values must be [batch_size, num_classes], contiguous")
    check(parameter.shape == (len(values),) and parameter.dtype == dtype, f"the parameter must be [batch_size] {dtype}")
    check(parameter.is_contiguous() and parameter.device == values.device, "the parameter must be contiguous, on the values' device")


def top_k_mask_logits(logits, top_k):
    _check_rows(logits, top_k, torch.int32)
    check(bool(((top_k > 0) & (top_k < logits.shape[1])).all()), "top_k must be in (0, num_classes)")
    order = torch.sort(logits, dim=1, descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(logits.shape[1]).expand_as(order))
    return logits.masked_fill(rank >= top_k.unsqueeze(1), -torch.inf)  # of ties some are dropped


def top_p_renorm_probs(probs, top_p, is_deterministic=False):
    _check_rows(probs, top_p, torch.float32)
    check(bool(((top_p > 0) & (top_p < 1)).all()), "top_p must be in (0, 1)")
    values = torch.sort(probs, dim=1, descending=True).values
    before = values.cumsum(1) - values
    reached = (before < top_p.unsqueeze(1)).sum(1, keepdim=True) - 1
    kept = torch.where(probs >= values.gather(1, reached.clamp(min=0)), probs, 0.0)  # of equals at the edge all stay
    return kept / kept.sum(1, keepdim=True)


def as_modules():
    """`flashinfer` and `flashinfer.sampling`, for sys.modules."""
    sampling = types.ModuleType("flashinfer.sampling")
    sampling.top_k_mask_logits, sampling.top_p_renorm_probs = top_k_mask_logits, top_p_renorm_probs
    package = types.ModuleType("flashinfer")
    package.sampling = sampling
    return {"flashinfer": package, "flashinfer.sampling": sampling}
