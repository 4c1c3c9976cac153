"""Small managers and requests for the tests of the KV cache managers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from slotwise.engine.request import Request
from slotwise.interfaces.kv_cache import ExtraKey, KVCacheSetup, KVGroup
from slotwise.sampling_params import SamplingParams
from slotwise_plugins.kv_cache.hashing import SHA256, HashFunction
from slotwise_plugins.kv_cache.manager import PagedKVCacheManager
from slotwise_plugins.kv_cache.no_prefix import NoPrefixKVCacheManager
from slotwise_plugins.kv_cache.pooled_manager import PooledKVCacheManager
from slotwise_plugins.kv_cache.radix_manager import RadixKVCacheManager

MakeManager = Callable[..., PagedKVCacheManager]
MakeRadix = Callable[..., RadixKVCacheManager]
MakeRequest = Callable[..., Request]


def make_group(index: int = 0, *, block_size: int = 4, **kind: Any) -> KVGroup:
    return KVGroup(index=index, layer_names=(f"layer{index}",), block_size=block_size, bytes_per_block=64, **kind)


def make_setup(*groups: KVGroup, num_usable_blocks: int = 64, **fields: Any) -> KVCacheSetup:
    defaults: dict[str, Any] = {"max_model_len": 4096, "enable_prefix_caching": True, "hash_seed": b"seed"}
    return KVCacheSetup(groups=groups or (make_group(),), num_blocks=num_usable_blocks + 1, **(defaults | fields))


@pytest.fixture(name="make_group")
def _make_group() -> Callable[..., KVGroup]:
    return make_group


@pytest.fixture
def make_manager() -> MakeManager:
    def make(*groups: KVGroup, hash_function: HashFunction = SHA256, **fields: Any) -> PagedKVCacheManager:
        return PagedKVCacheManager(make_setup(*groups, **fields), hash_function=hash_function)

    return make


@pytest.fixture
def make_radix() -> MakeRadix:
    def make(*groups: KVGroup, **fields: Any) -> RadixKVCacheManager:
        return RadixKVCacheManager(make_setup(*groups, **fields))

    return make


@pytest.fixture
def make_no_prefix() -> Callable[..., NoPrefixKVCacheManager]:
    def make(*groups: KVGroup, **fields: Any) -> NoPrefixKVCacheManager:
        return NoPrefixKVCacheManager(make_setup(*groups, **fields))

    return make


@pytest.fixture
def make_request() -> MakeRequest:
    def make(request_id: str, tokens: Sequence[int], *, extra_keys: Sequence[ExtraKey] = (), **fields: Any) -> Request:
        request = Request(
            request_id=request_id, prompt_token_ids=tokens, sampling_params=SamplingParams(max_tokens=16), extra_keys=extra_keys
        )
        for name, value in fields.items():
            setattr(request, name, value)
        return request

    return make


@pytest.fixture
def compute() -> Callable[..., int]:
    """Admit a request with whatever is cached, compute all its tokens in one step, and return how many were cached."""

    def run(manager: PooledKVCacheManager, request: Request) -> int:
        prefix = manager.find_cached_prefix(request)
        assert manager.allocate(request, request.num_tokens - prefix.num_tokens, cached_prefix=prefix) is not None
        request.num_computed_tokens = request.num_tokens
        return prefix.num_tokens

    return run
