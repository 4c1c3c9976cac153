"""The index from hash to block, with duplicates, against a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slotwise_plugins.kv_cache.block import KVBlock
from slotwise_plugins.kv_cache.hash_index import HashIndex


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from([b"a", b"b"])), max_size=40))
def test_finds_the_newest_and_reports_first_and_last_of_a_hash(steps: list[tuple[int, bytes]]) -> None:
    blocks = [KVBlock(block_id) for block_id in range(7)]
    index, model = HashIndex(), list[KVBlock]()
    for position, block_hash in steps:
        block = blocks[position]
        others = [other for other in model if other is not block]
        if block in model:
            model = others
            assert index.remove(block) == all(other.block_hash != block.block_hash for other in others)
            block.block_hash = None
        else:
            block.block_hash = block_hash
            assert index.add(block) == all(other.block_hash != block_hash for other in others)
            model.append(block)
        for known in (b"a", b"b"):
            assert index.find(known, None) is next((other for other in reversed(model) if other.block_hash == known), None)
        assert index.hashes() == {other.block_hash for other in model}
        assert len(index) == len(index.hashes())
