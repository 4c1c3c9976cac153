"""Copies of KV between blocks, against a plain loop over a snapshot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.config.engine_config import EngineConfig
from slotwise.engine.block_copy import copy_blocks
from slotwise.engine.kv_layout import allocate, standard_layout
from slotwise.engine.plan import plan_engine, refuse_copies_of_private_layout
from slotwise.errors import ConfigError
from slotwise.interfaces.attention import KVLayoutRequest
from slotwise.interfaces.kv_cache import BlockCopy

NUM_BLOCKS, BLOCK_SIZE = 7, 4


def make_layers(layout: str, seed: int = 0) -> list[Any]:
    """Two layers of group 0, one of them sharing the other's KV in a third, and one of group 1 that shares memory with the first."""
    request = KVLayoutRequest(name=layout, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, num_kv_heads=2, head_dim=3, dtype="float32")
    torch.manual_seed(seed)
    caches = [allocate(standard_layout(request), "cpu").normal_() for _ in range(2)]
    return [SimpleNamespace(group=group, kv_cache=caches[memory]) for group, memory in ((0, 0), (0, 1), (0, 1), (1, 0))]


copies_strategy = st.lists(
    st.builds(
        BlockCopy,
        group=st.integers(0, 1),
        source_block=st.integers(1, NUM_BLOCKS - 1),
        target_block=st.integers(1, NUM_BLOCKS - 1),
        num_tokens=st.integers(1, BLOCK_SIZE - 1),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda copy: copy.target_block,
)


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@settings(max_examples=40)
@given(copies=copies_strategy)
def test_every_target_holds_what_its_source_held_before_the_step_in_all_layers_of_the_group(layout: str, copies: list[BlockCopy]) -> None:
    layers = make_layers(layout)
    before = {layer.kv_cache.data_ptr(): layer.kv_cache.clone() for layer in layers}
    expected = {pointer: cache.clone() for pointer, cache in before.items()}
    for copy in copies:
        for pointer in {layer.kv_cache.data_ptr() for layer in layers if layer.group == copy.group}:
            expected[pointer][copy.target_block, :, : copy.num_tokens] = before[pointer][copy.source_block, :, : copy.num_tokens]
    copy_blocks(layers, copies)
    for layer in layers:
        assert torch.equal(layer.kv_cache, expected[layer.kv_cache.data_ptr()])


@pytest.mark.parametrize("manager", ["radix", "paged"])
def test_only_a_manager_that_copies_blocks_refuses_a_layout_of_a_backends_own(manager: str) -> None:
    plan = plan_engine(EngineConfig.model_validate({"kv_cache": {"use": manager}}))
    refuse_copies_of_private_layout(plan, "nhd")
    if manager == "paged":
        refuse_copies_of_private_layout(plan, "packed")
        return
    with pytest.raises(ConfigError, match=r"layout packed .*kv_cache\.use = \"paged\"") as raised:
        refuse_copies_of_private_layout(plan, "packed")
    assert raised.value.key == "kv_cache.use"
