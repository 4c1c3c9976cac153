"""Custom masks of one row, [query_len, seq_len] bool: what drafts in a tree, prefixes and images see."""

from __future__ import annotations

import torch


def make_mask(name: str | None, query_len: int, seq_len: int, generator: torch.Generator) -> torch.Tensor | None:
    """None for no mask. The context, where there is one, is visible to all but `random` and `nothing`."""
    if name is None:
        return None
    queries = torch.arange(seq_len - query_len, seq_len)[:, None]
    keys = torch.arange(seq_len)[None, :]
    if name == "nothing":
        return torch.zeros(query_len, seq_len, dtype=torch.bool)
    if name == "random":
        return (torch.rand(query_len, seq_len, generator=generator) < 0.5) | (keys == queries)
    if name == "prefix":
        span = (seq_len + 1) // 2
        return (keys <= queries) | ((keys < span) & (queries < span))
    assert name == "tree"
    return _tree(query_len, seq_len)


def _tree(query_len: int, seq_len: int) -> torch.Tensor:
    """New token i sees the context, itself, and its ancestors in a binary tree rooted at the first new token."""
    context = seq_len - query_len
    visible = torch.zeros(query_len, seq_len, dtype=torch.bool)
    visible[:, :context] = True
    for token in range(query_len):
        ancestor = token
        while ancestor >= 0:
            visible[token, context + ancestor] = True
            ancestor = (ancestor - 1) // 2 if ancestor else -1
    return visible
