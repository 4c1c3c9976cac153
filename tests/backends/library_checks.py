"""What stand-ins of kernel libraries share: checks that name the argument, and attention in float64 from a library's own arguments."""

from __future__ import annotations

import math

import torch


class WrongArgumentError(Exception):
    """A call that the real library documents as wrong."""


def check(condition, message):
    if not condition:
        raise WrongArgumentError(message)


def check_tensor(name, tensor, *, shape=None, dtypes=None, contiguous_last=True):
    """shape: a size or None (any) per dimension."""
    check(isinstance(tensor, torch.Tensor), f"{name} must be a tensor, not {type(tensor).__name__}")
    if shape is not None:
        check(tensor.dim() == len(shape), f"{name} must have {len(shape)} dimensions, has {tensor.dim()}")
        for index, (size, wanted) in enumerate(zip(tensor.shape, shape, strict=True)):
            check(wanted is None or size == wanted, f"{name} must have size {wanted} in dimension {index}, has {size}")
    if dtypes is not None:
        check(tensor.dtype in dtypes, f"{name} must be of {dtypes}, is {tensor.dtype}")
    if contiguous_last:
        check(tensor.numel() == 0 or tensor.stride(-1) == 1, f"{name} must have a contiguous last dimension")


def check_starts(name, starts, total):
    """A running sum as int32 from 0 to `total`."""
    check_tensor(name, starts, shape=(None,), dtypes=(torch.int32,))
    check(starts.is_contiguous(), f"{name} must be contiguous")
    check(int(starts[0]) == 0, f"{name} must begin with 0")
    check(bool((starts[1:] >= starts[:-1]).all()), f"{name} must not decrease")
    check(int(starts[-1]) == total, f"{name} must end with {total}, ends with {int(starts[-1])}")


def attend(query, key, value, *, visible, scale, soft_cap=0.0, sinks=None):
    """[num_rows, num_heads, dim] and natural-log LSE of one request in float64; key, value: [num_keys, num_kv_heads, dim]."""
    group_size = query.shape[1] // key.shape[1]
    key, value = (tensor.double().repeat_interleave(group_size, dim=1) for tensor in (key, value))
    # What nobody sees may hold NaN, which a kernel never loads.
    is_seen = visible.any(dim=0)
    key, value = torch.where(is_seen[:, None, None], key, 0.0), torch.where(is_seen[:, None, None], value, 0.0)
    scores = torch.einsum("qhd,khd->hqk", query.double(), key) * scale
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    scores = scores.masked_fill(~visible, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, scores.shape[1], 1)], dim=2)
    lse = torch.logsumexp(scores, dim=2) if scores.shape[2] else torch.full(scores.shape[:2], -math.inf, dtype=torch.float64)
    base = lse.masked_fill(torch.isneginf(lse), 0.0)
    weights = torch.exp(scores[..., : key.shape[0]] - base[..., None])
    return torch.einsum("hqk,khd->qhd", weights, value), lse.transpose(0, 1)


def visible_keys(num_queries, num_keys, *, causal, window_left=-1, window_right=-1):
    """[num_queries, num_keys]: causality and window aligned at the last query and key; -1 = no bound."""
    places = torch.arange(num_queries)[:, None] + num_keys - num_queries
    keys = torch.arange(num_keys)[None, :]
    visible = torch.ones(num_queries, num_keys, dtype=torch.bool)
    if causal:
        visible &= keys <= places
    if window_left >= 0:
        visible &= keys >= places - window_left
    if window_right >= 0:
        visible &= keys <= places + window_right
    return visible


def gather_pages(cache, table_row, num_keys):
    """[num_keys, num_kv_heads, dim] from [pages, page_size, num_kv_heads, dim]."""
    page_size = cache.shape[1]
    places = torch.arange(num_keys)
    return cache[table_row[places // page_size].long(), places % page_size]
