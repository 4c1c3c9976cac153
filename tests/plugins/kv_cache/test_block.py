"""The free queue, against a plain list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise_plugins.kv_cache.block import FreeBlockQueue, KVBlock


def test_gives_blocks_in_order_of_id_at_first() -> None:
    queue = FreeBlockQueue([KVBlock(block_id) for block_id in (1, 2, 3)])
    assert [queue.pop_front().block_id for _ in range(3)] == [1, 2, 3]
    assert len(queue) == 0


def test_refuses_to_queue_a_block_twice_or_remove_one_that_is_not_queued() -> None:
    block = KVBlock(1)
    queue = FreeBlockQueue([block])
    with pytest.raises(AssertionError):
        queue.append(block)
    queue.remove(block)
    with pytest.raises(AssertionError):
        queue.remove(block)
    with pytest.raises(AssertionError):
        queue.pop_front()


@given(st.lists(st.tuples(st.sampled_from(["pop", "append", "prepend", "remove"]), st.integers(0, 7)), max_size=60))
def test_behaves_like_a_list(operations: list[tuple[str, int]]) -> None:
    blocks = [KVBlock(block_id) for block_id in range(8)]
    queue, model = FreeBlockQueue(blocks[:5]), blocks[:5]
    for operation, index in operations:
        block = blocks[index]
        if operation == "pop" and model:
            assert queue.pop_front() is model.pop(0)
        elif operation == "append" and block not in model:
            queue.append(block)
            model.append(block)
        elif operation == "prepend" and block not in model:
            queue.prepend(block)
            model.insert(0, block)
        elif operation == "remove" and block in model:
            queue.remove(block)
            model.remove(block)
        assert list(queue) == model
        assert len(queue) == len(model)
