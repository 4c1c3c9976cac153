"""Hash chains: the identity of a block is its tokens, what else they depend on, and everything before them.

    hash(i) = H(len(hash(i-1)), hash(i-1), num_tokens, tokens as int64, num_keys, keys with their lengths)

Every variable part carries its length, so no two different inputs give one byte string. Hashes are taken at the granularity all
groups share; a group whose block spans several of them uses the last one.

What this file does not know: blocks, pools, groups.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slotwise.interfaces.kv_cache import ExtraKey, KVRequest

_U32 = struct.Struct("<I")
_LENGTHS = struct.Struct("<II")
_INTERVAL = struct.Struct("<qq")
_NO_KEYS = _U32.pack(0)
_ROOT_DOMAIN = b"slotwise kv chain root\0"


@dataclass(frozen=True, kw_only=True, slots=True)
class HashFunction:
    """What turns a block's encoding into its hash."""

    name: str
    digest: Callable[[bytes], bytes]
    is_proof: bool
    """Equal digests mean equal content: true of cryptographic digests only. If False every hit is compared with the stored content."""


SHA256 = HashFunction(name="sha256", digest=lambda data: hashlib.sha256(data).digest(), is_proof=True)


class BlockContent:
    """What a hash stands for, kept to compare: the encoding of one link, and the link before it."""

    __slots__ = ("encoding", "parent")

    def __init__(self, parent: BlockContent | None, encoding: bytes) -> None:
        self.parent = parent
        self.encoding = encoding

    def equals(self, stored: BlockContent | None) -> bool:
        """Whether both chains are equal down to the root. Equal chains are joined, so comparing them link by link costs O(1) each."""
        mine: BlockContent | None = self
        theirs = stored
        while mine is not theirs:
            if mine is None or theirs is None or mine.encoding != theirs.encoding:
                return False
            mine, theirs = mine.parent, theirs.parent
        if stored is not None:
            self.parent = stored.parent
        return True


def keys_within(keys: Sequence[ExtraKey], start: int, end: int) -> tuple[ExtraKey, ...]:
    """The keys that cover any position of start .. end - 1, in an order that does not depend on how they were listed."""
    covering = [key for key in keys if key.first_token < end and (key.num_tokens is None or max(key.first_token, start) < _end(key, end))]
    return tuple(sorted(covering, key=lambda key: (key.source, key.first_token, key.value, _end(key, end))))


def _end(key: ExtraKey, limit: int) -> int:
    return limit if key.num_tokens is None else min(key.first_token + key.num_tokens, limit)


def _encode_text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return _U32.pack(len(data)) + data


def encode_keys(keys: Sequence[ExtraKey], start: int, end: int) -> bytes:
    """Source, value, and the covered interval relative to `start`: the same image one token later is other content."""
    parts = [_U32.pack(len(keys))]
    for key in keys:
        parts += (_encode_text(key.source), _encode_text(key.value), _INTERVAL.pack(key.first_token - start, _end(key, end) - start))
    return b"".join(parts)


class BlockHasher:
    """Makes links of hash chains; one per manager."""

    def __init__(self, function: HashFunction, seed: bytes, granularity: int) -> None:
        self.function = function
        self.granularity = granularity
        """Tokens per link."""
        self.root = function.digest(_ROOT_DOMAIN + seed)
        self._pack_tokens = struct.Struct(f"<{granularity}q").pack

    def encode(self, parent: bytes, request: KVRequest, start: int) -> bytes:
        """Encoding of the link that begins at position `start`."""
        tokens = self._pack_tokens(*request.all_token_ids[start : start + self.granularity])
        return self._encode(parent, request, start, self.granularity, tokens)

    def encode_part(self, parent: bytes, request: KVRequest, start: int, num_tokens: int) -> bytes:
        """Encoding of `num_tokens` tokens from position `start`, fewer than a whole link or as many."""
        tokens = struct.pack(f"<{num_tokens}q", *request.all_token_ids[start : start + num_tokens])
        return self._encode(parent, request, start, num_tokens, tokens)

    def _encode(self, parent: bytes, request: KVRequest, start: int, num_tokens: int, tokens: bytes) -> bytes:
        end, extra_keys = start + num_tokens, request.extra_keys
        keys = encode_keys(keys_within(extra_keys, start, end), start, end) if extra_keys else _NO_KEYS
        return _LENGTHS.pack(len(parent), num_tokens) + parent + tokens + keys


class HashChain:
    """Hashes of one request's tokens, extended as tokens come and never recomputed."""

    __slots__ = ("_hasher", "contents", "hashes", "request")

    def __init__(self, hasher: BlockHasher, request: KVRequest) -> None:
        self._hasher = hasher
        self.request = request
        self.hashes: list[bytes] = []
        self.contents: list[BlockContent] = []
        """Parallel to `hashes`; stays empty where the hash is proof."""

    def extend(self, num_tokens: int) -> None:
        """Hash every whole link within the first `num_tokens` tokens that has no hash yet."""
        hasher = self._hasher
        for index in range(len(self.hashes), num_tokens // hasher.granularity):
            parent = self.hashes[-1] if index else hasher.root
            encoding = hasher.encode(parent, self.request, index * hasher.granularity)
            self.hashes.append(hasher.function.digest(encoding))
            if not hasher.function.is_proof:
                self.contents.append(BlockContent(self.contents[-1] if index else None, encoding))

    def content(self, index: int) -> BlockContent | None:
        """What to compare a hit on link `index` with; None where the hash is proof."""
        return self.contents[index] if self.contents else None
