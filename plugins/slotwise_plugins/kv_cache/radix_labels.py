"""What the edges of the radix tree say: the tokens of a request, block by block, and what else they depend on.

A position is written as its token id; where an extra key covers it, as a number beyond every token id that stands for token and keys
together. Keys that hold from the first position on (a salt, an adapter) choose the tree instead, so that they cost nothing per token.

What this file does not know: trees, blocks.
"""

from __future__ import annotations

import hashlib
import struct

from slotwise.interfaces.kv_cache import ExtraKey, KVRequest
from slotwise_plugins.kv_cache.hashing import encode_keys, keys_within

Label = tuple[int, ...]
"""Tokens of one block, or of its start."""

_TOKEN = struct.Struct("<q")
_BEYOND_TOKEN_IDS = 2**64


class TokenLabels:
    """Labels of one request, extended as tokens come and never made twice."""

    __slots__ = ("_block_size", "_later_keys", "blocks", "request", "tree_keys")

    def __init__(self, request: KVRequest, block_size: int) -> None:
        self.request = request
        self._block_size = block_size
        self.tree_keys: tuple[ExtraKey, ...] = keys_within(request.extra_keys, 0, 1)
        """Which tree the request belongs to."""
        self._later_keys = [key for key in request.extra_keys if key.first_token > 0]
        self.blocks: list[Label] = []
        """Labels of whole blocks, as far as they were asked for."""

    def extend(self, num_tokens: int) -> None:
        """Label every whole block within the first `num_tokens` tokens."""
        size = self._block_size
        for index in range(len(self.blocks), num_tokens // size):
            self.blocks.append(self.span(index * size, (index + 1) * size))

    def span(self, start: int, end: int) -> Label:
        """Label of the positions start .. end - 1."""
        tokens = self.request.all_token_ids[start:end]
        if not self._later_keys or not keys_within(self._later_keys, start, end):
            return tuple(tokens)
        return tuple(self._symbol(position, token) for position, token in enumerate(tokens, start=start))

    def _symbol(self, position: int, token: int) -> int:
        keys = keys_within(self._later_keys, position, position + 1)
        if not keys:
            return token
        digest = hashlib.sha256(_TOKEN.pack(token) + encode_keys(keys, position, position + 1)).digest()
        return _BEYOND_TOKEN_IDS + int.from_bytes(digest)


def common_len(a: Label, b: Label) -> int:
    """Length of the longest common prefix."""
    return next((index for index, (mine, yours) in enumerate(zip(a, b, strict=False)) if mine != yours), min(len(a), len(b)))
