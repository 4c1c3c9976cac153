"""Chains: one call into C computes what their links do one by one, across the borders of blocks."""

from __future__ import annotations

import pytest
import torch

from slotwise.interfaces.linear import LinearSetup
from slotwise_plugins.linear.native_linear import DenseLinear, Int4Linear, Int8Linear
from slotwise_plugins.linear.torch_linear import TorchLinear
from slotwise_plugins.native.availability import missing_library
from slotwise_plugins.native.chain import Gate, LoopedChain, Multiply, NativeChain, Normalize, Rotate, RowsLayout, Workspace, make_chain
from slotwise_plugins.native.library import DenseKernels, load_library
from slotwise_plugins.native.row_ops import HeadShape, NativeRowOps, RopeTable, TorchRowOps

pytestmark = pytest.mark.skipif(missing_library() is not None, reason="no C compiler was there at install")
HIDDEN, HEADS, KV_HEADS, DIM, INNER, BLOCK = 48, 3, 1, 16, 80, 5
QKV = (HEADS + 2 * KV_HEADS) * DIM


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.3


def workspace(dtype):
    whole = {"is_whole": True}
    layouts = {
        "hidden": RowsLayout(width=HIDDEN, dtype=torch.float32, **whole),
        "normed": RowsLayout(width=HIDDEN, dtype=dtype),
        "qkv": RowsLayout(width=QKV, dtype=torch.float32),
        "rotated": RowsLayout(width=QKV, dtype=dtype, **whole),
        "gate_up": RowsLayout(width=2 * INNER, dtype=torch.float32),
        "gated": RowsLayout(width=INNER, dtype=dtype),
        "added": RowsLayout(width=HIDDEN, dtype=torch.float32),
    }
    return Workspace(layouts, "cpu", BLOCK)


def links(linear):
    angles = random(64, DIM // 2, seed=9)
    shape = HeadShape(num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, eps=1e-6)
    table = RopeTable(cos=angles.cos(), sin=angles.sin())
    qkv, gate_up, down = (
        linear.pack(random(*size, seed=index)) for index, size in enumerate(((QKV, HIDDEN), (2 * INNER, HIDDEN), (HIDDEN, INNER)))
    )
    return [
        Normalize(weight=random(HIDDEN, seed=4), eps=1e-5, source="hidden", target="normed"),
        Multiply(matrix=gate_up, source="normed", target="gate_up"),
        Gate(activation="silu", source="gate_up", target="gated"),
        Multiply(matrix=down, source="gated", target="hidden", adds=True),
        Multiply(matrix=down, source="gated", target="added"),
        Normalize(weight=random(HIDDEN, seed=5), eps=1e-5, source="added", target="hidden", adds=True),
        Normalize(weight=random(HIDDEN, seed=6), eps=1e-5, source="hidden", target="normed"),
        Multiply(matrix=qkv, source="normed", target="qkv"),
        Rotate(table=table, shape=shape, query_norm=random(DIM, seed=7), key_norm=None, source="qkv", target="rotated"),
    ]


def run(chain, space, num_rows):
    hidden = space.bind("hidden", random(num_rows, HIDDEN, seed=20))
    rotated = space.whole("rotated", num_rows)
    chain.run(torch.arange(num_rows) % 64)
    return hidden, rotated.clone()


@pytest.mark.parametrize("num_rows", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 2])
@pytest.mark.parametrize("kind", [DenseLinear, Int8Linear, Int4Linear])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_call_equals_link_by_link(dtype, kind, num_rows):
    """To the bit: the same kernels run on the same blocks."""
    linear = kind(LinearSetup(dtype=str(dtype).removeprefix("torch."), device="cpu"))
    space, kernels = workspace(dtype), DenseKernels(load_library())
    chain = links(linear)
    native = run(NativeChain(chain, space, kernels), space, num_rows)
    looped = run(LoopedChain(chain, space, NativeRowOps(kernels)), space, num_rows)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(native, looped, strict=True))


def test_rows_do_not_depend_on_the_size_of_blocks():
    linear, kernels = DenseLinear(LinearSetup(dtype="float32", device="cpu")), DenseKernels(load_library())
    chain, found = links(linear), []
    for block in (1, 3, 64):
        space = Workspace(workspace(torch.float32)._layouts, "cpu", block)
        found.append(run(NativeChain(chain, space, kernels), space, 17))
    assert all(torch.equal(each[0], found[0][0]) and torch.equal(each[1], found[0][1]) for each in found)


def test_against_torch():
    linear, space = TorchLinear(LinearSetup(dtype="float32", device="cpu")), workspace(torch.float32)
    expected = run(LoopedChain(links(linear), space, TorchRowOps()), space, 12)
    native = DenseLinear(LinearSetup(dtype="float32", device="cpu"))
    found = run(NativeChain(links(native), space, DenseKernels(load_library())), space, 12)
    assert all(torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5) for mine, theirs in zip(found, expected, strict=True))


@pytest.mark.parametrize("num_rows", [0, 1, 12])
def test_one_block_for_all_rows_of_a_step(num_rows):
    """As on a device: the same numbers, and no memory is shared between steps."""
    linear, blocks = TorchLinear(LinearSetup(dtype="float32", device="cpu")), workspace(torch.float32)
    space = Workspace(blocks._layouts, "cpu", None)
    chain, results = links(linear), []
    for each in (blocks, space, space):
        each.begin_step(num_rows)
        results.append(run(LoopedChain(chain, each, TorchRowOps()), each, num_rows))
    for found in results[1:]:
        assert all(torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6) for mine, theirs in zip(found, results[0], strict=True))
    first, second = space.whole("rotated", 4), space.whole("rotated", 4)
    assert first.data_ptr() != second.data_ptr()


def test_a_matrix_that_is_not_native_is_looped_over():
    linear, space = TorchLinear(LinearSetup(dtype="float32", device="cpu")), workspace(torch.float32)
    kernels = DenseKernels(load_library())
    assert isinstance(make_chain(links(linear), space, NativeRowOps(kernels), kernels), LoopedChain)
    assert isinstance(make_chain(links(linear)[:1], space, NativeRowOps(kernels), kernels), NativeChain)


def test_whole_rows_grow_and_are_kept():
    space = workspace(torch.float32)
    first = space.whole("hidden", 8)
    assert space.whole("hidden", 3).data_ptr() == first.data_ptr()
    assert space.whole("hidden", 20).shape == (20, HIDDEN)
